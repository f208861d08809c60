//! YAML with the same names and values as the JSON form.

use serde_json::Value;

use super::json;
use crate::{
    error::{Exit, Failure, Result},
    text,
};

/// The value as one document, with a line feed at its end.
///
/// # Errors
/// When it cannot be written; that is a defect.
pub fn render(value: &Value) -> Result<String> {
    let text = serde_yaml_ng::to_string(value).map_err(|error| {
        Failure::new(Exit::Error, "INTERNAL", "the result is no YAML").caused_by(error)
    })?;
    // Marks that change the direction of writing may stand unquoted in YAML. JSON is YAML too,
    // and there they are escaped.
    if text.chars().any(|c| c != '\n' && text::hostile(c)) {
        return json::render(value);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_is_quoted_and_reads_back() {
        let value =
            serde_json::json!({"name": "a\u{1b}[2J\u{9b}", "n": "50000000000", "yes": "yes"});
        let text = render(&value).unwrap();
        assert!(text.starts_with("name:"));
        assert!(
            !text.chars().any(|c| c.is_control() && c != '\n'),
            "{text:?}"
        );
        assert_eq!(serde_yaml_ng::from_str::<Value>(&text).unwrap(), value);
    }

    #[test]
    fn marks_of_direction_are_escaped() {
        let value = serde_json::json!({"name": "\u{202e}gpj"});
        let text = render(&value).unwrap();
        assert!(!text.contains('\u{202e}'));
        assert_eq!(serde_yaml_ng::from_str::<Value>(&text).unwrap(), value);
    }
}
