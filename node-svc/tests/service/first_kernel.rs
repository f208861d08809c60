//! The first Python kernel comes from a process that waited for it, and nobody can tell.

use cnlab_testkit::{GENEROUS, wait_for};
use http::{Method, StatusCode};
use serde_json::json;

use crate::{
    servers::{Bench, processes_of},
    support::Leftovers,
};

/// Which program the kernel's process was started with.
const PROGRAM: &str = "
line = open('/proc/self/cmdline').read()
print([name for name in ('kernel_standby', 'ipykernel_launcher') if name in line])
";
const WAITED: &str = "['kernel_standby']";
const STARTED: &str = "['ipykernel_launcher']";

/// What code in a kernel can learn about the process it runs in. Left out are the names that
/// differ between any two kernels, and the module by which Python runs another one.
const FACTS: &str = "
import os, signal, sys, threading
signals = [signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD, signal.SIGHUP]
print([
    sorted(set(sys.modules) - {'runpy'}),
    [sys.argv[:-1], sys.orig_argv[:-1], sys.path, sys.flags, sys.executable],
    [os.getcwd(), os.getsid(0) == os.getpgid(0) == os.getpid(), os.getppid()],
    sorted((name, value) for name, value in os.environ.items() if name != 'JPY_SESSION_NAME'),
    [str(signal.getsignal(each)).split(' at ')[0] for each in signals],
    sorted(thread.name.split('-')[0] for thread in threading.enumerate()),
    [type(stream).__name__ for stream in (sys.stdin, sys.stdout, sys.stderr)],
    [os.read(0, 1), __name__, sys.modules['__main__'].__name__],
])
";

const SLEEP: &str = "
import subprocess
open('sleeps', 'w').close()
try:
    subprocess.run(['sleep', '1000'])
except KeyboardInterrupt:
    print('interrupted')
";

/// Waits until the process is there that becomes the first kernel.
async fn somebody_waits(workload_id: &str) {
    wait_for(GENEROUS, "the process that waits", async || {
        processes_of(workload_id)
            .into_iter()
            .find(|process| process.command.contains("kernel_standby"))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_kernel_has_waited_and_is_like_every_other() {
    let bench = Bench::new().await;
    let request = bench.request(2);
    let _leftovers = Leftovers(vec![request.workload_id.clone()]);
    let ready = bench.launch(&request).await;
    let notebook = bench.node.notebook(&ready);
    somebody_waits(&request.workload_id).await;

    let mut first = notebook.kernel().await;
    let mut second = notebook.kernel().await;
    assert_eq!(first.run(PROGRAM).await, WAITED);
    assert_eq!(second.run(PROGRAM).await, STARTED);
    let facts = first.run(FACTS).await;
    assert!(facts.contains("'ipykernel.debugger'"), "{facts}");
    assert_eq!(facts, second.run(FACTS).await);

    // An interrupt reaches it and what it has started.
    let kernel = format!("/api/kernels/{}", first.id);
    let interrupt = async {
        wait_for(GENEROUS, "the sleep", async || {
            let (status, _) = notebook.get("/api/contents/sleeps").await;
            (status == StatusCode::OK).then_some(())
        })
        .await
        .unwrap();
        notebook
            .json(Method::POST, &format!("{kernel}/interrupt"), &json!({}))
            .await;
    };
    let (said, ()) = tokio::join!(first.run(SLEEP), interrupt);
    assert_eq!(said, "interrupted");

    notebook
        .json(Method::POST, &format!("{kernel}/restart"), &json!({}))
        .await;
    let mut first = notebook.connect_anew(first).await;
    assert_eq!(first.run(PROGRAM).await, STARTED);

    bench.stop(&ready).await;
    assert!(processes_of(&request.workload_id).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_waited_for_older_packages_is_not_used() {
    let bench = Bench::new().await;
    let request = bench.request(2);
    let _leftovers = Leftovers(vec![request.workload_id.clone()]);
    let ready = bench.launch(&request).await;
    somebody_waits(&request.workload_id).await;

    let python = ready.python_version.rsplit_once('.').unwrap().0.to_owned();
    let packages = bench
        .data
        .path()
        .join("volumes")
        .join(&request.volume_id)
        .join(format!(".local/lib/python{python}/site-packages"));
    std::fs::create_dir_all(&packages).unwrap();
    let mut kernel = bench.node.notebook(&ready).kernel().await;
    assert_eq!(kernel.run(PROGRAM).await, STARTED);
    assert!(
        processes_of(&request.workload_id)
            .iter()
            .all(|process| !process.command.contains("kernel_standby"))
    );
    bench.stop(&ready).await;
}
