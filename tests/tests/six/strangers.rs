//! Two accounts on one node: neither sees, opens or reaches what is the other's (S-01, INV-6).

use anyhow::{Context as _, Result, ensure};
use cnlab_tests::{
    browser::{Browser, Page},
    cli::Cli,
    lab,
    six::{PATIENCE, Six},
    stack::http_get,
};

use crate::{create, link, notebook, on_six, servers, sign_in};

#[tokio::test(flavor = "multi_thread")]
async fn two_accounts_are_strangers_to_each_other() -> Result<()> {
    on_six(None, async |six| {
        let ada = six.admin().await?;
        let token = six.second_account("eve").await?;
        let eve = Cli::new()?;
        eve.login(&six.endpoint("gateway"), &token).await?;
        let hers = create(&ada, "secret", "h100-25pct").await?;
        let own = create(&eve, "secret", "a100-50pct").await?;

        commands(&ada, &eve, &hers).await?;
        let browser = Browser::launch().await?;
        pages(six, &browser, [&ada, &eve], [&hers, &own]).await?;
        inside(six, &browser, [&ada, &eve], [&hers, &own]).await?;
        browser.close().await
    })
    .await
}

/// The other's server does not exist for her commands.
async fn commands(ada: &Cli, eve: &Cli, hers: &str) -> Result<()> {
    let (all_of_ada, all_of_eve) = (servers(ada).await?, servers(eve).await?);
    ensure!(all_of_ada.len() == 1 && all_of_eve.len() == 1 && all_of_ada != all_of_eve);
    for command in [
        vec!["server", "show", hers],
        vec!["server", "open", hers, "--print"],
        vec!["server", "logs", hers],
        vec!["server", "stop", hers],
        vec!["server", "delete", hers, "--yes"],
    ] {
        let answer = eve.run(&command).await?;
        ensure!(
            answer.code != 0 && answer.stdout.is_empty() && answer.stderr.contains("NOT_FOUND"),
            "{command:?}: {answer:?}"
        );
    }
    ensure!(
        servers(ada).await? == all_of_ada,
        "somebody else changed a server"
    );
    Ok(())
}

/// A cookie opens the origin that it was made for, for its owner; everybody else is asked to
/// sign in.
async fn pages(six: &Six, browser: &Browser, people: [&Cli; 2], ids: [&str; 2]) -> Result<()> {
    let port = six.port("gateway");
    let host = |id: &str| format!("{}.localhost", id.replace('_', "-").to_lowercase());
    for id in ids {
        let answer = http_get(port, &host(id), "/lab").await?;
        ensure!(
            answer.starts_with("HTTP/1.1 401 "),
            "without a cookie: {answer}"
        );
        ensure!(!answer.to_lowercase().contains("jupyter"), "{answer}");
    }
    let page = browser.page().await?;
    sign_in(&page, &link(people[0], "secret").await?).await?;
    // The same browser, signed in to one server, at the other.
    page.goto(&format!("http://{}:{port}/lab", host(ids[1])))
        .await?;
    asked_to_sign_in(&page).await?;
    // And back: still signed in.
    page.goto(&format!("http://{}:{port}/lab", host(ids[0])))
        .await?;
    page.wait_for(
        "its own page",
        "fetch('/api/status').then(a => a.ok)",
        PATIENCE,
    )
    .await?;

    // A code is for one server: posted at another one, it is worth nothing.
    let link = link(people[0], "secret").await?;
    let (_, code) = link.split_once('#').context("a code in the link")?;
    page.goto(&format!(
        "http://{}:{port}/_cnlab/open#{code}",
        host(ids[1])
    ))
    .await?;
    page.wait_for(
        "a refusal of the code",
        "document.getElementById('status') && \
         !document.getElementById('status').innerText.startsWith('Signing in')",
        PATIENCE,
    )
    .await?;
    page.goto(&format!("http://{}:{port}/lab", host(ids[1])))
        .await?;
    asked_to_sign_in(&page).await
}

async fn asked_to_sign_in(page: &Page) -> Result<()> {
    page.wait_for(
        "the sign-in page",
        "document.body.innerText.includes('Sign in to this server')",
        PATIENCE,
    )
    .await
}

/// What code in one server can find of the other, of the node's files and of the services.
async fn inside(six: &Six, browser: &Browser, people: [&Cli; 2], ids: [&str; 2]) -> Result<()> {
    let other = notebook(browser, &link(people[1], "secret").await?, "one").await?;
    let write = "open('of-eve-alone.txt', 'w').write('x' * 7)";
    lab::run_cell(&other, write, "7").await?;
    let victim = six.jupyter(ids[1])?;

    let page = notebook(browser, &link(people[0], "secret").await?, "one").await?;
    let look = LOOK
        .replace("FOLDERS", &format!("{:?}", folders(six)?))
        .replace("OTHER", ids[1])
        .replace("OWN", ids[0])
        .replace("VICTIM", &victim.pid.to_string());
    lab::run_cell(&page, &look, "found: []").await?;
    ensure!(victim.is_alive());

    let ports = [
        "scheduler-svc",
        "billing-svc",
        "node-svc",
        "migration-svc",
        "cloud-svc",
    ]
    .map(|service| six.port(service));
    let knock = KNOCK
        .replace("PORTS", &format!("{ports:?}"))
        .replace("NODE", &six.port("node-svc").to_string())
        .replace("OTHER", ids[1]);
    lab::run_cell(&page, &knock, "let in: []").await?;
    with_the_key(six, ids[1]).await
}

fn folders(six: &Six) -> Result<Vec<String>> {
    let all = [
        six.data().join("volumes"),
        six.data().join("nodes"),
        six.admin_token(),
        six.key_file(),
    ];
    all.iter()
        .map(|path| {
            path.to_str()
                .map(str::to_owned)
                .context("a folder with an odd name")
        })
        .collect()
}

/// Files, processes and signals.
const LOOK: &str = r#"import os, subprocess
found = [path for path in FOLDERS if os.path.exists(path)]
open('of-ada-alone.txt', 'w').close()
seen = subprocess.run(['find', '/', '-name', 'of-*' + 'alone.txt'], capture_output=True, text=True).stdout.split()
if '/workspace/of-ada-alone.txt' not in seen:
    found.append('the search is blind')
found += [path for path in seen if 'of-eve' in path]
own = 0
for pid in filter(str.isdigit, os.listdir('/proc')):
    try:
        line = open(f'/proc/{pid}/cmdline', errors='replace').read()
        env = open(f'/proc/{pid}/environ', errors='replace').read()
    except OSError:
        continue
    own += 'OWN' in env and 'start_jupyterlab.py' in line
    if 'OTHER' in line + env or '-svc' in line.split('\0')[0] or 'postgres' in line:
        found.append(line)
if own != 1:
    found.append(f'{own} of its own JupyterLab')
try:
    os.kill(VICTIM, 0)
    owner = os.stat('/proc/VICTIM').st_uid
    if owner != os.getuid():
        found.append('signalled VICTIM')
except OSError:
    pass
if os.getuid() == 0 or os.geteuid() == 0:
    found.append('root')
print('found:', found)"#;

/// The services' ports, without the key and with wrong ones.
const KNOCK: &str = r#"import http.client
let_in = []
calls = ['/cnlab.scheduler.v1.RosterService/ResolveRoute', '/cnlab.billing.v1.CredentialService/IssueOpenCode', '/cnlab.node.v1.NodeService/ListWorkloads']
for port in PORTS:
    for call in calls:
        for key in [None, '', '0' * 64]:
            door = http.client.HTTPConnection('127.0.0.1', port, timeout=30)
            headers = {'content-type': 'application/grpc', 'te': 'trailers'}
            if key is not None:
                headers['cnlab-internal-key'] = key
            door.request('POST', call, body=bytes(5), headers=headers)
            answer = door.getresponse()
            if answer.getheader('grpc-status') != '16':
                let_in.append((port, call, key, answer.status, answer.getheaders()))
for key in [None, '0' * 64]:
    door = http.client.HTTPConnection('127.0.0.1', NODE, timeout=30)
    headers = {'cnlab-workload-id': 'OTHER', 'cnlab-fence': '2'}
    if key is not None:
        headers['cnlab-internal-key'] = key
    door.request('GET', '/api/status', headers=headers)
    answer = door.getresponse()
    if answer.status != 401:
        let_in.append((NODE, answer.status, answer.read()))
print('let in:', let_in)"#;

/// The counter-check: with the key, the very same kind of call is answered.
async fn with_the_key(six: &Six, id: &str) -> Result<()> {
    use cnlab_proto::scheduler::v1::{
        ResolveRouteRequest, roster_service_client::RosterServiceClient,
    };
    let request = || ResolveRouteRequest {
        server_id: id.to_owned(),
    };
    let mut roster = RosterServiceClient::new(six.channel("scheduler-svc")?);
    let refused = roster.resolve_route(request()).await;
    ensure!(
        refused.is_err_and(|status| status.code() == tonic::Code::Unauthenticated),
        "the scheduler lets in whoever comes"
    );
    let mut knowing = tonic::Request::new(request());
    let key = std::fs::read_to_string(six.key_file())?;
    knowing
        .metadata_mut()
        .insert("cnlab-internal-key", key.trim().parse()?);
    ensure!(roster.resolve_route(knowing).await?.into_inner().ready);
    Ok(())
}
