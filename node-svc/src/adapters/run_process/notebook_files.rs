//! What JupyterLab is told: its settings, its command line and its environment.

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
};

use nix::unistd::geteuid;
use serde_json::json;

use crate::{config::FirstKernel, disk, ports::RunPlan};

/// Longest folder in which a socket can still be bound: 108 bytes with the name and an end.
const SOCKET_FOLDER_MAX: usize = 90;
/// Longest folder in which kernels can have Unix sockets, whose names are longer.
const KERNEL_FOLDER_MAX: usize = 40;
/// Name of the notebook's socket in the runtime folder.
pub(crate) const SOCKET: &str = "jupyter.sock";
const SETTINGS: &str = "notebook.json";
/// The program that starts JupyterLab. Its name is what a user sees in the list of processes.
const START: &str = "start_jupyterlab.py";
const START_TEXT: &str = include_str!("start_jupyterlab.py");
/// What the start uses, where the configuration says so: each file with its text.
const PREPARED_KERNEL: [(&str, &str); 2] = [
    ("first_kernel.py", include_str!("first_kernel.py")),
    ("kernel_standby.py", include_str!("kernel_standby.py")),
];

/// Makes the runtime folder anew: empty but for the settings and programs, and the workload's own.
pub(super) fn prepare(plan: &RunPlan, isolated: bool, first: FirstKernel) -> io::Result<()> {
    let host = plan.folder.join("run");
    disk::remove_dir(&host)?;
    disk::make_dir(&host, 0o700)?;
    let runtime = if isolated {
        PathBuf::from(super::RUNTIME)
    } else {
        link_short_path(&plan.folder)?;
        let_through(&plan.folder)?;
        short_path(&plan.folder)
    };
    let workspace = if isolated {
        PathBuf::from(super::WORKSPACE)
    } else {
        plan.volume.clone()
    };
    let settings = serde_json::to_string_pretty(&settings_for(plan, &runtime, &workspace))?;
    let mut files = vec![(SETTINGS, settings.as_str()), (START, START_TEXT)];
    match first {
        FirstKernel::Prepared => files.extend(PREPARED_KERNEL),
        FirstKernel::Cold => {}
    }
    let own = |path: &Path| {
        if geteuid().is_root() {
            chown(path, Some(plan.uid), Some(plan.uid))?;
        }
        io::Result::Ok(())
    };
    for (name, text) in files {
        let path = host.join(name);
        disk::write(&path, text.as_bytes(), disk::Durability::Atomic)?;
        own(&path)?;
    }
    own(&host)
}

fn settings_for(plan: &RunPlan, runtime: &Path, workspace: &Path) -> serde_json::Value {
    let short = runtime.as_os_str().len() <= KERNEL_FOLDER_MAX;
    json!({
        "ServerApp": {
            "sock": runtime.join(SOCKET),
            "sock_mode": "0600",
            "root_dir": workspace,
            "base_url": "/",
            "open_browser": false,
            // The gateway decides who gets in; the name in the address is the server's origin.
            "allow_remote_access": true,
            "terminals_enabled": true,
            "quit_button": false,
            "port_retries": 0,
            // The environment is read-only, so the packaged page cannot be built anew; to look
            // whether it should be takes a second of every page's load.
            "tornado_settings": {
                "page_config_data": { "buildAvailable": false, "buildCheck": false },
            },
        },
        "IdentityProvider": { "token": plan.token },
        // Kernels on Unix sockets: loopback ports would be open to the machine's other users.
        "KernelManager": { "transport": if short { "ipc" } else { "tcp" } },
        "LabApp": {
            "check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
            "news_url": null,
        },
    })
}

/// The command line. It holds paths only.
pub(super) fn command(environment: &Path, runtime: &Path) -> Vec<String> {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    vec![
        text(environment.join("bin/python")),
        text(runtime.join(START)),
        format!("--config={}", text(runtime.join(SETTINGS))),
    ]
}

/// The complete environment of the process.
pub(super) fn environment(
    plan: &RunPlan,
    workspace: &Path,
    runtime: &Path,
) -> Vec<(String, String)> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let software = &plan.environment.path;
    let mut env = vec![
        (
            "PATH".to_owned(),
            format!(
                "{}:{}:/usr/local/bin:/usr/bin:/bin",
                text(&software.join("bin")),
                text(&workspace.join(".local/bin"))
            ),
        ),
        ("HOME".to_owned(), text(workspace)),
        ("USER".to_owned(), "cnlab".to_owned()),
        ("LOGNAME".to_owned(), "cnlab".to_owned()),
        ("SHELL".to_owned(), "/bin/bash".to_owned()),
        ("LANG".to_owned(), "C.UTF-8".to_owned()),
        ("VIRTUAL_ENV".to_owned(), text(software)),
        ("PYTHONUNBUFFERED".to_owned(), "1".to_owned()),
        // The environment is read-only; what a user installs goes into the volume.
        ("PIP_USER".to_owned(), "1".to_owned()),
        ("PIP_DISABLE_PIP_VERSION_CHECK".to_owned(), "1".to_owned()),
        (
            "JUPYTER_RUNTIME_DIR".to_owned(),
            text(&runtime.join("jupyter")),
        ),
        (
            "CNLAB_SERVER_ID".to_owned(),
            plan.holder.workload.to_string(),
        ),
    ];
    if let Some(traceparent) = &plan.traceparent {
        env.push(("TRACEPARENT".to_owned(), traceparent.clone()));
    }
    env.extend(plan.gpu.env.iter().cloned());
    env
}

/// The runtime folder as the process is told it on a machine without mount namespaces: the
/// folder itself, or a short link to it where a socket's name would be too long.
pub(super) fn short_path(folder: &Path) -> PathBuf {
    let host = folder.join("run");
    if host.as_os_str().len() <= SOCKET_FOLDER_MAX {
        return host;
    }
    let name = folder
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let parent = folder
        .parent()
        .and_then(Path::file_name)
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    std::env::temp_dir().join(format!("cnlab-{parent}-{name}"))
}

/// Lets the workload's user pass through the node's folders, without listing them: on a machine
/// without mount namespaces it reaches its runtime folder by the machine's own paths.
fn let_through(folder: &Path) -> io::Result<()> {
    const NODE_FOLDERS: usize = 5;
    if !geteuid().is_root() {
        return Ok(());
    }
    for folder in folder.ancestors().take(NODE_FOLDERS) {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o711))?;
    }
    Ok(())
}

fn link_short_path(folder: &Path) -> io::Result<()> {
    let (host, short) = (folder.join("run"), short_path(folder));
    if host == short {
        return Ok(());
    }
    match fs::symlink_metadata(&short) {
        Ok(_) if fs::read_link(&short).is_ok_and(|target| target == host) => return Ok(()),
        // Not ours: following it would hand the socket to somebody else.
        Ok(_) => {
            return Err(io::Error::other(format!(
                "{} is in the way",
                short.display()
            )));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    std::os::unix::fs::symlink(&host, &short)
}

/// Removes what [`prepare`] left outside the life's folder.
pub(crate) fn remove_short_path(folder: &Path) -> io::Result<()> {
    let (host, short) = (folder.join("run"), short_path(folder));
    if host != short && fs::read_link(&short).is_ok_and(|target| target == host) {
        fs::remove_file(&short)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use cnlab_model::id::{ServerId, Ulid};
    use node_core::{Holder, WorkloadId};

    use super::*;
    use crate::{environment::Environment, ports::Attachment};

    /// Whether a path belongs to this user and nobody else can reach into it.
    fn is_private(path: &Path, owner: u32) -> bool {
        let meta = fs::metadata(path).unwrap();
        meta.uid() == owner && meta.permissions().mode() & 0o077 == 0
    }

    fn plan(folder: &Path) -> RunPlan {
        RunPlan {
            holder: Holder {
                workload: WorkloadId::Server(ServerId::from_ulid(Ulid(7))),
                fence: 3,
            },
            hostname: "first".to_owned(),
            environment: Environment {
                image: "i".to_owned(),
                path: "/envs/i".into(),
                python_version: "3.11.2".to_owned(),
                base_prefix: "/usr".into(),
                installed: Vec::new(),
            },
            volume: "/volumes/v".into(),
            uid: if geteuid().is_root() {
                210_000
            } else {
                geteuid().as_raw()
            },
            folder: folder.to_owned(),
            token: "the-secret-token".to_owned(),
            command: None,
            lease: None,
            max_runtime: None,
            memory_bytes: 0,
            cpu_milli: 0,
            traceparent: Some("00-1-2-01".to_owned()),
            gpu: Attachment::default(),
        }
    }

    #[test]
    fn the_token_is_only_in_a_private_file() {
        let folder = tempfile::tempdir().unwrap();
        let plan = plan(folder.path());
        prepare(&plan, true, FirstKernel::Prepared).unwrap();
        let settings = folder.path().join("run").join(SETTINGS);
        assert!(fs::read_to_string(&settings).unwrap().contains(&plan.token));
        for path in [&settings, &folder.path().join("run")] {
            assert!(is_private(path, plan.uid));
        }
        let runtime = Path::new(super::super::RUNTIME);
        let shown = format!(
            "{:?} {:?}",
            command(&plan.environment.path, runtime),
            environment(&plan, Path::new("/workspace"), runtime)
        );
        assert!(!shown.contains(&plan.token));
        assert!(shown.contains("TRACEPARENT"));
    }

    #[test]
    fn without_a_prepared_kernel_its_programs_are_not_there() {
        for (first, there) in [(FirstKernel::Prepared, true), (FirstKernel::Cold, false)] {
            let folder = tempfile::tempdir().unwrap();
            let plan = plan(folder.path());
            prepare(&plan, true, first).unwrap();
            let run = folder.path().join("run");
            assert!(is_private(&run.join(START), plan.uid));
            for (name, _) in PREPARED_KERNEL {
                assert_eq!(run.join(name).exists(), there, "{name}");
                assert!(!there || is_private(&run.join(name), plan.uid));
            }
        }
    }

    #[test]
    fn a_long_folder_gets_a_short_link_that_is_removed_again() {
        let base = tempfile::tempdir().unwrap();
        let unique = base.path().file_name().unwrap().to_owned();
        let folder = base
            .path()
            .join("x".repeat(100))
            .join("workloads")
            .join(unique)
            .join("3");
        fs::create_dir_all(&folder).unwrap();
        let plan = plan(&folder);
        prepare(&plan, false, FirstKernel::Prepared).unwrap();
        let short = short_path(&folder);
        assert!(short.as_os_str().len() <= SOCKET_FOLDER_MAX);
        assert!(short.join(SETTINGS).exists());
        prepare(&plan, false, FirstKernel::Prepared).unwrap();
        remove_short_path(&folder).unwrap();
        assert!(fs::symlink_metadata(&short).is_err());
    }
}
