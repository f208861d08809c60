//! A real, headless Chromium, driven by its DevTools protocol over a pair of pipes.

use std::{
    collections::HashMap,
    path::Path,
    process::Stdio,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::{Mutex as AsyncMutex, oneshot},
    task::JoinHandle,
};

/// How long one command of the protocol may take.
const ANSWER: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Value>>>>;

/// A browser with a profile of its own, ended together with this value.
#[derive(Debug)]
pub struct Browser {
    wire: Arc<Wire>,
    child: Child,
    reader: JoinHandle<()>,
    _profile: tempfile::TempDir,
}

#[derive(Debug)]
struct Wire {
    to_browser: AsyncMutex<ChildStdin>,
    waiting: Waiting,
    next: AtomicU64,
}

/// One tab.
#[derive(Debug)]
pub struct Page {
    wire: Arc<Wire>,
    session: String,
}

impl Browser {
    /// Starts Chromium.
    ///
    /// # Errors
    /// When it is not installed (Debian: `chromium`) or does not start.
    pub async fn launch() -> Result<Self> {
        let profile = tempfile::Builder::new()
            .prefix("cnlab-chromium-")
            .tempdir()?;
        // The protocol's pipes are the descriptors 3 and 4: the shell puts them there.
        let mut child = Command::new("sh")
            .args([
                "-c",
                "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null",
                "sh",
                "chromium",
            ])
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--disable-dev-shm-usage",
                "--remote-debugging-pipe",
                "--window-size=1280,900",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("chromium does not start; on Debian: apt-get install chromium")?;
        let to_browser = child.stdin.take().context("no pipe to the browser")?;
        let from_browser = child.stdout.take().context("no pipe from the browser")?;
        let waiting = Waiting::default();
        let wire = Arc::new(Wire {
            to_browser: AsyncMutex::new(to_browser),
            waiting: Arc::clone(&waiting),
            next: AtomicU64::new(1),
        });
        #[expect(
            clippy::disallowed_methods,
            reason = "the browser's pipe is no task of a service"
        )]
        let reader = tokio::spawn(read(from_browser, waiting));
        let browser = Self {
            wire,
            child,
            reader,
            _profile: profile,
        };
        browser
            .wire
            .call(None, "Browser.getVersion", json!({}))
            .await
            .context("chromium did not answer; on Debian: apt-get install chromium")?;
        Ok(browser)
    }

    /// Opens a tab in a context of its own: no cookie is shared with another one.
    ///
    /// # Errors
    /// When the browser refuses.
    pub async fn page(&self) -> Result<Page> {
        let context = self
            .wire
            .call(None, "Target.createBrowserContext", json!({}))
            .await?;
        let target = self
            .wire
            .call(
                None,
                "Target.createTarget",
                json!({"url": "about:blank", "browserContextId": context["browserContextId"], "width": 1280, "height": 900}),
            )
            .await?;
        let attached = self
            .wire
            .call(
                None,
                "Target.attachToTarget",
                json!({"targetId": target["targetId"], "flatten": true}),
            )
            .await?;
        let session = attached["sessionId"]
            .as_str()
            .context("no session")?
            .to_owned();
        let page = Page {
            wire: Arc::clone(&self.wire),
            session,
        };
        page.call("Page.enable", json!({})).await?;
        page.call("Runtime.enable", json!({})).await?;
        // Every tab behaves as the one in front.
        page.call(
            "Emulation.setFocusEmulationEnabled",
            json!({"enabled": true}),
        )
        .await?;
        Ok(page)
    }

    /// Ends the browser and waits for it.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub async fn close(mut self) -> Result<()> {
        // It answers or it ends: either will do.
        drop(self.wire.call(None, "Browser.close", json!({})).await);
        if tokio::time::timeout(Duration::from_secs(10), self.child.wait())
            .await
            .is_err()
        {
            self.child.kill().await?;
        }
        self.reader.abort();
        Ok(())
    }
}

async fn read(from_browser: ChildStdout, waiting: Waiting) {
    let mut from_browser = BufReader::new(from_browser);
    let mut message = Vec::new();
    loop {
        message.clear();
        match from_browser.read_until(0, &mut message).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        message.pop();
        let Ok(message) = serde_json::from_slice::<Value>(&message) else {
            continue;
        };
        if let Some(id) = message["id"].as_u64()
            && let Some(answer) = waiting
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&id)
        {
            // Whoever asked may have given up meanwhile.
            drop(answer.send(message));
        }
    }
    waiting
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clear();
}

impl Wire {
    async fn call(&self, session: Option<&str>, method: &str, params: Value) -> Result<Value> {
        let id = self.next.fetch_add(1, Ordering::SeqCst);
        let (answer, answered) = oneshot::channel();
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(id, answer);
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(session) = session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&message)?;
        bytes.push(0);
        {
            let mut pipe = self.to_browser.lock().await;
            pipe.write_all(&bytes).await?;
            pipe.flush().await?;
        }
        let answer = tokio::time::timeout(ANSWER, answered)
            .await
            .with_context(|| format!("the browser did not answer {method}"))?
            .with_context(|| format!("the browser ended during {method}"))?;
        if let Some(error) = answer.get("error") {
            bail!("{method}: {error}");
        }
        Ok(answer["result"].clone())
    }
}

impl Page {
    async fn call(&self, method: &str, params: Value) -> Result<Value> {
        self.wire.call(Some(&self.session), method, params).await
    }

    /// Goes to an address; answers when the browser has the first bytes.
    ///
    /// # Errors
    /// When the address cannot be reached.
    pub async fn goto(&self, url: &str) -> Result<()> {
        let answer = self.call("Page.navigate", json!({"url": url})).await?;
        match answer.get("errorText").and_then(Value::as_str) {
            None | Some("") => Ok(()),
            Some(error) => Err(anyhow!("{url}: {error}")),
        }
    }

    /// What an expression is worth in the page; a promise is waited for.
    ///
    /// # Errors
    /// When it throws.
    pub async fn eval(&self, expression: &str) -> Result<Value> {
        let answer = self
            .call(
                "Runtime.evaluate",
                json!({"expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true}),
            )
            .await?;
        if let Some(thrown) = answer.get("exceptionDetails") {
            bail!(
                "{expression}: {}",
                thrown["exception"]["description"]
                    .as_str()
                    .unwrap_or("threw")
            );
        }
        Ok(answer["result"]["value"].clone())
    }

    /// Waits until an expression is true.
    ///
    /// # Errors
    /// When the deadline passes first; the error says what the page shows.
    pub async fn wait_for(&self, what: &str, expression: &str, deadline: Duration) -> Result<()> {
        let waited = tokio::time::timeout(deadline, async {
            loop {
                // A page in the middle of a navigation has no world to evaluate in.
                if let Ok(Value::Bool(true)) = self
                    .eval(&format!("Promise.resolve({expression}).then(Boolean)"))
                    .await
                {
                    return;
                }
                tokio::time::sleep(POLL).await;
            }
        });
        if waited.await.is_ok() {
            return Ok(());
        }
        let shows = self
            .eval("location.href + '\\n' + document.body.innerText.slice(0, 2000)")
            .await
            .unwrap_or_default();
        bail!(
            "{what}: not seen within {deadline:?}; the page shows {}",
            shows.as_str().unwrap_or("nothing")
        )
    }

    /// Clicks in the middle of the first element that a selector names.
    ///
    /// # Errors
    /// When there is none.
    pub async fn click(&self, selector: &str) -> Result<()> {
        let selector_json = serde_json::to_string(selector)?;
        let place = self
            .eval(&format!(
                "(() => {{ const e = document.querySelector({selector_json}); if (!e) return null; \
                 e.scrollIntoView({{block: 'center'}}); const r = e.getBoundingClientRect(); \
                 return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
            ))
            .await?;
        let (Some(x), Some(y)) = (place[0].as_f64(), place[1].as_f64()) else {
            bail!("nothing matches {selector}");
        };
        for kind in ["mousePressed", "mouseReleased"] {
            self.call(
                "Input.dispatchMouseEvent",
                json!({"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1}),
            )
            .await?;
        }
        Ok(())
    }

    /// Types a text into what has the focus.
    ///
    /// # Errors
    /// When the browser refuses.
    pub async fn type_text(&self, text: &str) -> Result<()> {
        self.call("Input.insertText", json!({"text": text}))
            .await
            .map(drop)
    }

    /// Types a text key by key, for what listens to keys and not to text.
    ///
    /// # Errors
    /// When the browser refuses.
    pub async fn type_keys(&self, text: &str) -> Result<()> {
        for key in text.chars() {
            let key = key.to_string();
            self.call(
                "Input.dispatchKeyEvent",
                json!({"type": "keyDown", "key": key, "text": key, "unmodifiedText": key}),
            )
            .await?;
            self.call(
                "Input.dispatchKeyEvent",
                json!({"type": "keyUp", "key": key}),
            )
            .await?;
        }
        Ok(())
    }

    /// Presses Enter, with Shift where asked.
    ///
    /// # Errors
    /// When the browser refuses.
    pub async fn press_enter(&self, shift: bool) -> Result<()> {
        let modifiers = if shift { 8 } else { 0 };
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({
                "type": kind, "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13,
                "nativeVirtualKeyCode": 13, "modifiers": modifiers,
            });
            if kind == "keyDown" {
                event["text"] = json!("\r");
            }
            self.call("Input.dispatchKeyEvent", event).await?;
        }
        Ok(())
    }

    /// Writes a PNG of what is to be seen.
    ///
    /// # Errors
    /// When the browser refuses or the file cannot be written.
    pub async fn screenshot(&self, path: &Path) -> Result<()> {
        let answer = self
            .call("Page.captureScreenshot", json!({"format": "png"}))
            .await?;
        let data = answer["data"].as_str().context("no picture")?;
        std::fs::write(path, decode_base64(data)?)
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// The protocol sends pictures as standard base64.
fn decode_base64(text: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0_u32);
    for symbol in text.bytes().take_while(|symbol| *symbol != b'=') {
        let value = match symbol {
            b'A'..=b'Z' => symbol - b'A',
            b'a'..=b'z' => symbol - b'a' + 26,
            b'0'..=b'9' => symbol - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => bail!("no base64"),
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff)?);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_every_length() {
        assert_eq!(decode_base64("").unwrap(), b"");
        assert_eq!(decode_base64("Zg==").unwrap(), b"f");
        assert_eq!(decode_base64("Zm8=").unwrap(), b"fo");
        assert_eq!(decode_base64("Zm9vYmFy").unwrap(), b"foobar");
        assert!(decode_base64("Zm9*").is_err());
    }
}
