//! Makes text from elsewhere harmless for a terminal, and measures it.
//!
//! **Invariant**: no control character, and none that changes the direction of writing,
//! reaches a terminal through these functions, other than line feeds where they are asked for.

use std::{borrow::Cow, time::Duration};

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Whether a character can do more on a terminal than show itself.
#[must_use]
pub fn hostile(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// The text on one line, with hostile characters written as `\u{1b}`.
#[must_use]
pub fn one_line(text: &str) -> Cow<'_, str> {
    escape(text, |_| false)
}

/// The text with its line feeds and without other hostile characters.
#[must_use]
pub fn lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| c == '\n')
}

fn escape(text: &str, keep: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(|c| hostile(c) && !keep(c)) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if hostile(c) && !keep(c) {
            safe.extend(c.escape_unicode());
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// Columns that the text takes on a terminal.
#[must_use]
pub fn width(text: &str) -> usize {
    text.width()
}

/// The beginning of the text that fits into so many columns, with `…` where it was cut.
#[must_use]
pub fn cut(text: &str, columns: usize) -> Cow<'_, str> {
    if width(text) <= columns {
        return Cow::Borrowed(text);
    }
    let mut used = 0;
    let mut short = String::new();
    for c in text.chars() {
        let wide = c.width().unwrap_or(0);
        if used + wide + 1 > columns {
            break;
        }
        used += wide;
        short.push(c);
    }
    if columns > 0 {
        short.push('…');
    }
    Cow::Owned(short)
}

/// A time to wait: seconds below two minutes, then whole minutes, then hours; rounded up,
/// since a promise that is kept early is better than one that is broken.
#[must_use]
pub fn wait(span: Duration) -> String {
    let seconds = span.as_secs() + u64::from(span.subsec_nanos() > 0);
    if seconds < 120 {
        return format!("{seconds}s");
    }
    minutes(span)
}

/// A time to wait in whole minutes, at least one: `12 min`, `3 h 5 min`.
#[must_use]
pub fn minutes(span: Duration) -> String {
    let seconds = span.as_secs() + u64::from(span.subsec_nanos() > 0);
    let minutes = seconds.div_ceil(60).max(1);
    if minutes < 120 {
        return format!("{minutes} min");
    }
    match minutes % 60 {
        0 => format!("{} h", minutes / 60),
        rest => format!("{} h {rest} min", minutes / 60),
    }
}

/// Time that has passed: `12s`, `3m05s`.
#[must_use]
pub fn elapsed(span: Duration) -> String {
    let seconds = span.as_secs();
    if seconds < 60 {
        format!("{seconds}s")
    } else {
        format!("{}m{:02}s", seconds / 60, seconds % 60)
    }
}

/// Lets the text of a program through to a terminal: colours stay, everything else that could
/// move the cursor, set the title or ring is dropped. Keeps its state between pieces.
#[derive(Debug, Default)]
pub struct LogFilter {
    state: Escape,
}

#[derive(Debug, Default)]
enum Escape {
    #[default]
    Text,
    /// After ESC.
    Start,
    /// Inside `ESC [`: what came so far.
    Control(String),
    /// Inside a string that ends with BEL or `ESC \`.
    Skip,
    /// In such a string, after ESC.
    SkipEnd,
}

/// Longest colour sequence that is kept.
const MAX_SEQUENCE: usize = 32;

impl LogFilter {
    /// What may be shown of the next piece.
    pub fn pass(&mut self, piece: &str) -> String {
        let mut shown = String::with_capacity(piece.len());
        for c in piece.chars() {
            self.step(c, &mut shown);
        }
        shown
    }

    fn step(&mut self, c: char, shown: &mut String) {
        self.state = match std::mem::take(&mut self.state) {
            Escape::Text => match c {
                '\u{1b}' => Escape::Start,
                '\n' | '\t' => {
                    shown.push(c);
                    Escape::Text
                }
                c => {
                    if !hostile(c) {
                        shown.push(c);
                    }
                    Escape::Text
                }
            },
            Escape::Start => match c {
                '[' => Escape::Control(String::new()),
                ']' | 'P' | 'X' | '^' | '_' => Escape::Skip,
                '\u{1b}' => Escape::Start,
                _ => Escape::Text,
            },
            Escape::Control(mut so_far) => match c {
                '0'..='9' | ';' | ':' if so_far.len() < MAX_SEQUENCE => {
                    so_far.push(c);
                    Escape::Control(so_far)
                }
                'm' if so_far.len() < MAX_SEQUENCE && !so_far.contains('?') => {
                    shown.push_str("\u{1b}[");
                    shown.push_str(&so_far);
                    shown.push('m');
                    Escape::Text
                }
                // Parameters that no colour has: go on to the end of the sequence and drop it.
                '\u{20}'..='\u{3f}' => Escape::Control("?".repeat(MAX_SEQUENCE)),
                _ => Escape::Text,
            },
            Escape::Skip => match c {
                '\u{7}' => Escape::Text,
                '\u{1b}' => Escape::SkipEnd,
                _ => Escape::Skip,
            },
            Escape::SkipEnd => match c {
                '\\' => Escape::Text,
                _ => Escape::Skip,
            },
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_characters_are_written_out() {
        assert_eq!(
            one_line("a\u{1b}[2Jb\n\u{9b}\u{202e}"),
            "a\\u{1b}[2Jb\\u{a}\\u{9b}\\u{202e}"
        );
        assert_eq!(lines("a\nb\r"), "a\nb\\u{d}");
        assert!(matches!(one_line("✓ plain"), Cow::Borrowed(_)));
    }

    #[test]
    fn cut_counts_columns_not_bytes() {
        assert_eq!(cut("✓ ready", 7), "✓ ready");
        assert_eq!(cut("✓ ready", 4), "✓ r…");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!(cut("abc", 0), "");
    }

    #[test]
    fn waits_round_up() {
        for (millis, seconds, whole_minutes) in [
            (0, "0s", "1 min"),
            (17_200, "18s", "1 min"),
            (119_000, "119s", "2 min"),
            (660_500, "12 min", "12 min"),
            (7_200_000, "2 h", "2 h"),
            (11_100_000, "3 h 5 min", "3 h 5 min"),
        ] {
            assert_eq!(wait(Duration::from_millis(millis)), seconds);
            assert_eq!(minutes(Duration::from_millis(millis)), whole_minutes);
        }
        assert_eq!(elapsed(Duration::from_secs(185)), "3m05s");
    }

    #[test]
    fn logs_keep_colours_only() {
        let mut filter = LogFilter::default();
        assert_eq!(
            filter.pass("\u{1b}[1;32mok\u{1b}[0m\n"),
            "\u{1b}[1;32mok\u{1b}[0m\n"
        );
        assert_eq!(filter.pass("a\u{1b}[2Jb\u{7}\rc"), "abc");
        assert_eq!(
            filter.pass("\u{1b}]0;title\u{7}x\u{1b}]8;;u\u{1b}\\y"),
            "xy"
        );
        assert_eq!(filter.pass("\u{1b}[?25lz\u{1b}[>4;2mq"), "zq");
        // A sequence that is split over two pieces.
        assert_eq!(filter.pass("\u{1b}[3"), "");
        assert_eq!(filter.pass("1mred"), "\u{1b}[31mred");
    }
}
