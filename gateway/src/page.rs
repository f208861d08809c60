//! The few pages of the gateway's own: no script but one, no asset of anybody else.

use std::fmt::Write as _;

use http::{HeaderValue, StatusCode, header};

use crate::{body::Body, http_types::Response};

const STYLE: &str = include_str!("../assets/style.css");
const OPEN_SCRIPT: &str = include_str!("../assets/open.js");
/// Only our own style sheet and script, and nobody may put us into a frame.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Where the style sheet of the gateway's own host is.
pub const STYLE_PATH: &str = "/style.css";
/// Where the style sheet is on a server's origin.
pub const NOTEBOOK_STYLE_PATH: &str = "/_cnlab/style.css";
/// Where the script of the sign-in page is.
pub const SCRIPT_PATH: &str = "/_cnlab/open.js";

/// A page.
#[derive(Debug)]
pub struct Page {
    status: StatusCode,
    title: &'static str,
    style: &'static str,
    body: String,
    refresh: Option<u32>,
    script: bool,
}

impl Page {
    /// A page for a server's origin.
    #[must_use]
    pub const fn new(status: StatusCode, title: &'static str) -> Self {
        Self {
            status,
            title,
            style: NOTEBOOK_STYLE_PATH,
            body: String::new(),
            refresh: None,
            script: false,
        }
    }

    /// A paragraph.
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        self.body.push_str("<p>");
        escape(text, &mut self.body);
        self.body.push_str("</p>\n");
        self
    }

    /// A paragraph whose text changes.
    #[must_use]
    pub fn live_text(mut self, id: &'static str, text: &str) -> Self {
        let _ = write!(self.body, "<p id=\"{id}\" role=\"status\">");
        escape(text, &mut self.body);
        self.body.push_str("</p>\n");
        self
    }

    /// Something to type into a terminal.
    #[must_use]
    pub fn command(mut self, command: &str) -> Self {
        self.body.push_str("<pre><code>");
        escape(command, &mut self.body);
        self.body.push_str("</code></pre>\n");
        self
    }

    /// Loads itself again after so many seconds.
    #[must_use]
    pub const fn refresh(mut self, seconds: u32) -> Self {
        self.refresh = Some(seconds);
        self
    }

    /// Runs the sign-in script.
    #[must_use]
    pub const fn script(mut self) -> Self {
        self.script = true;
        self
    }

    /// On the gateway's own host.
    #[must_use]
    pub const fn on_own_host(mut self) -> Self {
        self.style = STYLE_PATH;
        self
    }

    /// As a response.
    #[must_use]
    pub fn into_response(self) -> Response {
        let mut html = String::with_capacity(self.body.len() + 512);
        html.push_str("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
        html.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
        if let Some(seconds) = self.refresh {
            let _ = writeln!(html, "<meta http-equiv=\"refresh\" content=\"{seconds}\">");
        }
        let _ = writeln!(html, "<title>{} · CNLab</title>", self.title);
        let _ = writeln!(html, "<link rel=\"stylesheet\" href=\"{}\">", self.style);
        if self.script {
            let _ = writeln!(html, "<script src=\"{SCRIPT_PATH}\" defer></script>");
        }
        let _ = write!(
            html,
            "</head>\n<body>\n<main>\n<h1>{}</h1>\n{}</main>\n</body>\n</html>\n",
            self.title, self.body
        );
        let mut response = Response::new(Body::full(html));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/html; charset=utf-8"),
        );
        headers.insert(
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static(POLICY),
        );
        headers.insert(
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        );
        headers.insert(
            header::REFERRER_POLICY,
            HeaderValue::from_static("same-origin"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = self.refresh {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// Our style sheet.
#[must_use]
pub fn style() -> Response {
    asset(STYLE, "text/css; charset=utf-8")
}

/// The sign-in script.
#[must_use]
pub fn open_script() -> Response {
    asset(OPEN_SCRIPT, "text/javascript; charset=utf-8")
}

fn asset(text: &'static str, kind: &'static str) -> Response {
    let mut response = Response::new(Body::full(text));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// A short plain answer.
#[must_use]
pub fn plain(status: StatusCode, text: impl Into<String>) -> Response {
    let mut text: String = text.into();
    text.push('\n');
    let mut response = Response::new(Body::full(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn escape(text: &str, out: &mut String) {
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped() {
        let page = Page::new(StatusCode::OK, "x").text("<script>\"&'</script>");
        assert_eq!(
            page.body,
            "<p>&lt;script&gt;&quot;&amp;&#39;&lt;/script&gt;</p>\n"
        );
    }

    #[test]
    fn assets_name_no_other_host() {
        for asset in [STYLE, OPEN_SCRIPT] {
            assert!(!asset.contains("//") || !asset.contains("http"), "{asset}");
        }
    }
}
