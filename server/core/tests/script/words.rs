//! A line as words and options: `acquire job s1 flags=3` or `put greeting "two words"`.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

/// The unparsed rest of a line.
#[derive(Debug)]
pub(crate) struct Words {
    words: std::vec::IntoIter<String>,
    options: BTreeMap<String, String>,
}

impl Words {
    /// Splits a line at its spaces; quotes hold a word together.
    pub(crate) fn new(line: &str) -> Self {
        let mut words = Vec::new();
        let mut options = BTreeMap::new();
        for word in split(line) {
            match word.split_once('=') {
                Some((name, value)) if is_option(name) => {
                    options.insert(name.to_owned(), value.to_owned());
                }
                _ => words.push(word),
            }
        }
        Self { words: words.into_iter(), options }
    }

    /// The next word.
    pub(crate) fn word(&mut self) -> Result<String, String> {
        self.words.next().ok_or_else(|| "a word is missing".into())
    }

    /// The next word, or an empty one.
    pub(crate) fn word_or_empty(&mut self) -> String {
        self.words.next().unwrap_or_default()
    }

    /// The next word as a number.
    pub(crate) fn number(&mut self) -> Result<u64, String> {
        parse(&self.word()?)
    }

    /// An option.
    pub(crate) fn option(&mut self, name: &str) -> Option<String> {
        self.options.remove(name)
    }

    /// An option with a number.
    pub(crate) fn number_option(&mut self, name: &str) -> Result<Option<u64>, String> {
        self.option(name).map(|text| parse(&text)).transpose()
    }

    /// An option with a list.
    pub(crate) fn list_option(&mut self, name: &str) -> Option<Vec<String>> {
        let list = self.option(name)?;
        Some(list.split(',').filter(|item| !item.is_empty()).map(str::to_owned).collect())
    }

    /// An option with a duration in whole seconds, such as `15s`; zero if absent.
    pub(crate) fn seconds_option(&mut self, name: &str) -> Result<Duration, String> {
        let text = self.option(name).unwrap_or_else(|| "0s".into());
        let seconds = text.strip_suffix('s').ok_or("a time ends with s")?;
        parse(seconds).map(Duration::from_secs)
    }

    /// Rejects remaining words, or a misspelt option would go unnoticed.
    pub(crate) fn end(mut self) -> Result<(), String> {
        match (self.words.next(), self.options.keys().next()) {
            (None, None) => Ok(()),
            (Some(word), _) => Err(format!("what is {word:?}?")),
            (None, Some(option)) => Err(format!("what is the option {option:?}?")),
        }
    }
}

fn parse<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number"))
}

fn is_option(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-')
}

fn split(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    for letter in line.chars() {
        match letter {
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            ' ' if !quoted => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}
