//! Templates: the texts of a service, filled for the name that was looked up.
//!
//! A text may contain `${name.full}`, `${name.prefix}`, `${name.suffix}`, `${match(N)}` and
//! `${agent.segment}`; `$${` is a plain `${`. A template that can be filled for one name can be
//! filled for all, except that its texts may become too large for a longer name.

use crate::pattern::Pattern;
use lockmesh_protocol::prepared_query::{NAME_PREFIX_MATCH, QUERY_BYTES_MAX, QueryService, QuerySpec};

/// The reason why a template is rejected, in Consul's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// There is no such kind of templates.
    #[error("Bad Template.Type '{0}'")]
    Kind(String),
    /// The regular expression is invalid, or too large when compiled.
    #[error("Bad Regexp: {0}")]
    Regexp(String),
    /// A text is not of the language.
    #[error(
        "Bad format '{text}' in {place}: parse error: syntax error, write ${{name.full}}, ${{name.prefix}}, \
         ${{name.suffix}}, ${{match(N)}} or ${{agent.segment}}"
    )]
    Format {
        /// The text.
        text: String,
        /// The field.
        place: String,
    },
    /// A text contains an unknown name.
    #[error("Bad evaluation for '{text}' in {place}: {line}:{column}: {reason}")]
    Evaluation {
        /// The text.
        text: String,
        /// The field.
        place: String,
        /// The line, from 1.
        line: usize,
        /// The column in characters, from 1.
        column: usize,
        /// The reason.
        reason: String,
    },
    /// The texts become too large for this name.
    #[error(
        "the filled texts have more than {QUERY_BYTES_MAX} bytes up to {place}: look up a shorter name, or use fewer \
         variables in the template"
    )]
    TooLarge {
        /// The field that exceeds the limit.
        place: String,
    },
}

/// Returns a query as it is for a name: a template is filled, any other query is unchanged.
///
/// # Errors
/// The template is invalid, for this and all other names, or its texts are too large for this one.
pub fn filled(spec: &QuerySpec, name: &str) -> Result<QuerySpec, TemplateError> {
    let mut filled = spec.clone();
    if !spec.is_template() {
        return Ok(filled);
    }
    if spec.template.kind != NAME_PREFIX_MATCH {
        return Err(TemplateError::Kind(spec.template.kind.clone()));
    }
    let mut values = Values::new(spec, name)?;
    let service = &mut filled.service;
    each_text(service, &mut |place, text| {
        *text = values.fill(text).map_err(|flaw| flaw.in_text(text, place))?;
        Ok(())
    })?;
    if let Some(tags) = service.tags.as_mut().filter(|_| spec.template.remove_empty_tags) {
        tags.retain(|tag| !tag.is_empty());
    }
    Ok(filled)
}

/// Visits the texts that may be templates, each with its place.
fn each_text(
    service: &mut QueryService,
    visit: &mut impl FnMut(String, &mut String) -> Result<(), TemplateError>,
) -> Result<(), TemplateError> {
    visit("Service.Service".into(), &mut service.service)?;
    visit("Service.Near".into(), &mut service.near)?;
    visit("Service.Peer".into(), &mut service.peer)?;
    let lists = [
        ("Failover.Datacenters", &mut service.datacenters),
        ("IgnoreCheckIDs", &mut service.ignore_check_ids),
        ("Tags", &mut service.tags),
    ];
    for (name, list) in lists {
        for (number, text) in list.iter_mut().flatten().enumerate() {
            visit(format!("Service.{name}[{number}]"), text)?;
        }
    }
    for (number, target) in service.targets.iter_mut().flatten().enumerate() {
        visit(format!("Service.Failover.Targets[{number}].Peer"), &mut target.peer)?;
        visit(format!("Service.Failover.Targets[{number}].Datacenter"), &mut target.datacenter)?;
    }
    let maps = [("NodeMeta", &mut service.node_meta), ("ServiceMeta", &mut service.service_meta)];
    for (name, map) in maps {
        for (key, text) in map.iter_mut().flatten() {
            visit(format!("Service.{name}[{key}]"), text)?;
        }
    }
    Ok(())
}

/// The values of a name.
struct Values<'a> {
    full: &'a str,
    prefix: &'a str,
    suffix: &'a str,
    /// The groups of the regular expression, from the whole match on; none if it does not match.
    groups: Vec<String>,
    /// The bytes that further filled texts may have.
    room: usize,
}

impl<'a> Values<'a> {
    fn new(spec: &'a QuerySpec, name: &'a str) -> Result<Self, TemplateError> {
        let groups = match spec.template.regexp.as_str() {
            "" => Vec::new(),
            regexp => match Pattern::new(regexp) {
                Ok(pattern) => pattern.groups(name),
                Err(error) => return Err(TemplateError::Regexp(error.to_string())),
            },
        };
        let prefix = spec.name.as_str();
        // Names are looked up without regard to case, but cut as they are.
        Ok(Self {
            full: name,
            prefix,
            suffix: name.strip_prefix(prefix).unwrap_or(name),
            groups,
            room: QUERY_BYTES_MAX,
        })
    }

    /// Fills a text, which counts towards the limit of all.
    fn fill(&mut self, text: &str) -> Result<String, Flaw> {
        let (mut filled, mut rest) = (String::new(), text);
        while let Some(start) = rest.find("${") {
            let (before, expression) = rest.split_at(start);
            if let Some(before) = before.strip_suffix('$') {
                filled.push_str(before);
                filled.push_str("${");
                rest = &expression[2..];
                continue;
            }
            filled.push_str(before);
            let at = text.len() - expression.len() + 2;
            let (inside, behind) = expression[2..].split_once('}').ok_or(Flaw::Format)?;
            filled.push_str(self.value(Expression::parse(inside, at)?)?);
            if filled.len() > self.room {
                return Err(Flaw::TooLarge);
            }
            rest = behind;
        }
        filled.push_str(rest);
        self.room = self.room.checked_sub(filled.len()).ok_or(Flaw::TooLarge)?;
        Ok(filled)
    }

    fn value(&self, expression: Expression<'_>) -> Result<&str, Flaw> {
        let Expression { name, at, argument } = expression;
        match (name, argument) {
            ("name.full", None) => Ok(self.full),
            ("name.prefix", None) => Ok(self.prefix),
            ("name.suffix", None) => Ok(self.suffix),
            // Agents have no network segments.
            ("agent.segment", None) => Ok(""),
            ("match", Some(Argument::Number(number))) => {
                let group = usize::try_from(number).ok().and_then(|number| self.groups.get(number));
                Ok(group.map(String::as_str).unwrap_or_default())
            }
            ("match", Some(Argument::Count(count))) => {
                Err(Flaw::Evaluation(at, format!("match: expected 1 arguments, got {count}")))
            }
            (_, Some(_)) => Err(Flaw::Evaluation(at, format!("unknown function called: {name}"))),
            (_, None) => Err(Flaw::Evaluation(at, format!("unknown variable accessed: {name}"))),
        }
    }
}

/// The content of `${…}`: a variable, or the call of a function.
struct Expression<'a> {
    name: &'a str,
    /// Its position in the text, in bytes.
    at: usize,
    /// `None` for a variable.
    argument: Option<Argument>,
}

/// The arguments of a call.
enum Argument {
    /// One number.
    Number(i64),
    /// Another count of arguments.
    Count(usize),
}

impl<'a> Expression<'a> {
    /// Parses an expression that begins at this position of the text.
    fn parse(inside: &'a str, at: usize) -> Result<Self, Flaw> {
        let at = at + inside.len() - inside.trim_start().len();
        let inside = inside.trim();
        let Some((name, list)) = inside.split_once('(') else {
            return is_name(inside).then_some(Self { name: inside, at, argument: None }).ok_or(Flaw::Format);
        };
        let list_at = at + name.len() + 1;
        let list = list.strip_suffix(')').ok_or(Flaw::Format)?;
        let name = name.trim_end();
        if !is_name(name) {
            return Err(Flaw::Format);
        }
        let arguments: Vec<&str> = match list.trim() {
            "" => Vec::new(),
            _ => list.split(',').map(str::trim).collect(),
        };
        let argument = match arguments[..] {
            [one] => match one.parse() {
                Ok(number) => Argument::Number(number),
                Err(_) if is_name(one) && !KNOWN.contains(&one) => {
                    let at = list_at + list.len() - list.trim_start().len();
                    return Err(Flaw::Evaluation(at, format!("unknown variable accessed: {one}")));
                }
                Err(_) => return Err(Flaw::Format),
            },
            _ => Argument::Count(arguments.len()),
        };
        Ok(Self { name, at, argument: Some(argument) })
    }
}

/// The variables.
const KNOWN: [&str; 4] = ["name.full", "name.prefix", "name.suffix", "agent.segment"];

fn is_name(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(is_inner)
}

/// The reason why a text is not filled.
enum Flaw {
    /// It is not of the language.
    Format,
    /// An unknown name at this position, in bytes.
    Evaluation(usize, String),
    /// All filled texts together are too large.
    TooLarge,
}

impl Flaw {
    fn in_text(self, text: &str, place: String) -> TemplateError {
        let text = text.to_owned();
        match self {
            Self::Format => TemplateError::Format { text, place },
            Self::TooLarge => TemplateError::TooLarge { place },
            Self::Evaluation(at, reason) => {
                let before = &text[..at];
                let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
                let (line, column) =
                    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1);
                TemplateError::Evaluation { text, place, line, column, reason }
            }
        }
    }
}
