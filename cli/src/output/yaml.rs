//! YAML with the same names and values as the JSON form.

use serde_json::Value;

use crate::error::{Exit, Failure, Result};

/// The value as one document, with a line feed at its end.
///
/// # Errors
/// When it cannot be written; that is a defect.
pub fn render(value: &Value) -> Result<String> {
    serde_yaml_ng::to_string(value).map_err(|error| {
        Failure::new(Exit::Error, "INTERNAL", "the result is no YAML").caused_by(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_is_quoted_and_reads_back() {
        let value =
            serde_json::json!({"name": "a\u{1b}[2J\u{9b}", "n": "50000000000", "yes": "yes"});
        let text = render(&value).unwrap();
        assert!(
            !text.chars().any(|c| c.is_control() && c != '\n'),
            "{text:?}"
        );
        assert_eq!(serde_yaml_ng::from_str::<Value>(&text).unwrap(), value);
    }
}
