//! The configuration files of a deployment on one machine.

use std::path::Path;

use anyhow::{Context as _, Result};

use super::{Six, environments};

/// The text of a service's file.
pub(super) fn of(service: &str, six: &Six, otlp: Option<&str>) -> Result<String> {
    // A key before the first table belongs to the top, hence this order.
    let mut text = own_keys(service, six)?;
    text.push_str(&format!(
        "\n[common]\n\
         listen = \"127.0.0.1:{}\"\n\
         internal_key = {{ file = {} }}\n\
         \n[common.telemetry]\n\
         log = \"info,cnlab_service=debug\"\n",
        six.port(service),
        path(&six.key_file())?,
    ));
    if let Some(otlp) = otlp {
        text.push_str(&format!("otlp_endpoint = \"{otlp}\"\n"));
    }
    if let Ok(url) = six.database(service) {
        text.push_str(&format!("\n[database]\nurl = \"{url}\"\n"));
    }
    text.push_str(&own_tables(service, six)?);
    Ok(text)
}

fn own_keys(service: &str, six: &Six) -> Result<String> {
    Ok(match service {
        "gateway" => format!(
            "scheduler = \"{}\"\nbilling = \"{}\"\n",
            six.endpoint("scheduler-svc"),
            six.endpoint("billing-svc")
        ),
        "node-svc" => format!(
            "name = \"first\"\nscheduler = \"{}\"\ndata_dir = {}\n",
            six.endpoint("scheduler-svc"),
            path(&six.data())?
        ),
        _ => String::new(),
    })
}

fn own_tables(service: &str, six: &Six) -> Result<String> {
    Ok(match service {
        "billing-svc" => format!(
            "\n[bootstrap]\ntoken_file = {}\n",
            path(&six.admin_token())?
        ),
        "scheduler-svc" => format!(
            "\n[lease]\nstore = \"redis\"\nurl = \"{}\"\n\
             \n[notebook]\nport = {}\n\
             \n[grants]\nrenew_every = \"1s\"\n\
             \n[billing]\nendpoint = \"{}\"\n",
            six.redis.url(),
            six.port("gateway"),
            six.endpoint("billing-svc")
        ),
        "node-svc" => format!(
            "\n[gpu]\nsource = \"simulated\"\n\
             \n[environment]\nfolder = {}\n",
            path(environments()?)?
        ),
        _ => String::new(),
    })
}

/// A path as TOML: temporary folders have names without quotes and control characters.
fn path(path: &Path) -> Result<String> {
    let text = path.to_str().context("a folder with an odd name")?;
    Ok(format!("'{text}'"))
}
