//! JSON that is safe to show on a terminal.

use std::fmt::Write as _;

use serde_json::Value;

use crate::{
    error::{Exit, Failure, Result},
    text,
};

/// The value, indented, with a line feed at its end.
///
/// # Errors
/// When it cannot be written; that is a defect.
pub fn render(value: &Value) -> Result<String> {
    let text = serde_json::to_string_pretty(value).map_err(|error| {
        Failure::new(Exit::Error, "INTERNAL", "the result is no JSON").caused_by(error)
    })?;
    Ok(escape_rest(&text) + "\n")
}

/// The value on one line, for streams of documents.
///
/// # Errors
/// When it cannot be written; that is a defect.
pub fn render_line(value: &Value) -> Result<String> {
    Ok(escape_rest(&value.to_string()) + "\n")
}

/// Below U+0020 the encoder escapes by itself. DEL, the C1 controls and the marks that change
/// the direction of writing can only stand inside strings, where their escape means the same.
fn escape_rest(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if c != '\n' && text::hostile(c) {
            // Writing to a String cannot fail.
            let _ = write!(safe, "\\u{:04x}", u32::from(c));
        } else {
            safe.push(c);
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_mean_the_same_text() {
        let value = Value::from("a\u{1b}\u{9b}\u{202e}\u{7f}é");
        let text = render(&value).unwrap();
        assert_eq!(text, "\"a\\u001b\\u009b\\u202e\\u007fé\"\n");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }
}
