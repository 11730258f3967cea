//! Golden filters: the answers and error texts of Consul 1.8.7 (Debian 11, `consul agent -dev`) for
//! the same services on `/v1/agent/services?filter=`, recorded on 2026-11-27. The ones about checks
//! are those of `/v1/health/service/web?filter=`. Texts of invalid regular expressions are ours.

use super::{Filter, FilterError, MAX_DEPTH, MAX_STEPS, MAX_TEXT_BYTES, Record, Value};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
struct Service {
    id: &'static str,
    name: &'static str,
    port: i64,
    tags: Vec<String>,
    meta: BTreeMap<String, String>,
    addresses: BTreeMap<String, Address>,
    passing: i64,
    enable_tag_override: bool,
    checks: Vec<Check>,
}

#[derive(Clone, Debug, Default)]
struct Address {
    port: i64,
}

#[derive(Clone, Debug, Default)]
struct Check {
    status: String,
    output: String,
    tags: Vec<String>,
}

struct Weights(i64);

impl Record for Service {
    fn field(&self, name: &str) -> Option<Value<'_>> {
        Some(match name {
            "ID" => Value::Text(self.id),
            "Service" => Value::Text(self.name),
            "Port" => Value::Number(self.port),
            "Tags" => Value::Texts(&self.tags),
            "Meta" => Value::TextMap(&self.meta),
            "TaggedAddresses" => Value::RecordMap(&self.addresses),
            "Weights" => Value::Record(Box::new(Weights(self.passing))),
            "EnableTagOverride" => Value::Bool(self.enable_tag_override),
            "Checks" => Value::Records(Box::new(self.checks.as_slice())),
            _ => return None,
        })
    }
}

impl Record for Address {
    fn field(&self, name: &str) -> Option<Value<'_>> {
        (name == "Port").then_some(Value::Number(self.port))
    }
}

impl Record for Weights {
    fn field(&self, name: &str) -> Option<Value<'_>> {
        (name == "Passing").then_some(Value::Number(self.0))
    }
}

impl Record for Check {
    fn field(&self, name: &str) -> Option<Value<'_>> {
        Some(match name {
            "Status" => Value::Text(&self.status),
            "Output" => Value::Text(&self.output),
            "ServiceTags" => Value::Texts(&self.tags),
            _ => return None,
        })
    }
}

fn services() -> Vec<Service> {
    let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let check = |status: &str| Check { status: status.into(), tags: texts(&["prod"]), ..Check::default() };
    let web = Service {
        id: "web1",
        name: "web",
        port: 80,
        tags: texts(&["prod", "v1"]),
        meta: [("a-b".into(), "1".into()), ("ver".into(), "2".into())].into(),
        addresses: [("lan_ipv4".into(), Address { port: 80 })].into(),
        passing: 3,
        enable_tag_override: true,
        checks: vec![check("passing"), check("critical")],
    };
    let db = Service { id: "db/1", name: "db", port: 5432, passing: 1, ..Service::default() };
    let proxy = Service { id: "web-proxy", name: "web-proxy", port: 5000, passing: 1, ..Service::default() };
    vec![db, proxy, web]
}

fn select(text: &str) -> Result<Vec<&'static str>, FilterError> {
    let filter = Filter::new(text, &Service::default())?;
    let mut steps = 0;
    let mut ids = Vec::new();
    for service in services() {
        if filter.selects(&service, &mut steps)? {
            ids.push(service.id);
        }
    }
    Ok(ids)
}

fn answer(text: &str) -> String {
    match select(text) {
        Ok(ids) => ids.join(" "),
        Err(error) => error.to_string(),
    }
}

const PRECEDENCE: &[(&str, &str)] = &[
    ("Service==web", "web1"),
    ("Service == web or Service == db and Port == 1", "web1"),
    ("(Service == web or Service == db) and Port == 5432", "db/1"),
    ("not Service == web", "db/1 web-proxy"),
    ("not not Service == web", "web1"),
    ("not not not Service == web", "db/1 web-proxy"),
    ("not Service == web and Port == 5432", "db/1"),
    ("not (Service == web or Port == 5432)", "web-proxy"),
    ("((Service == web))", "web1"),
    ("\t Service\n!=\r\nweb ", "db/1 web-proxy"),
    ("prod in Tags and not (Port == 80 or Port == 81)", ""),
];
const OPERATORS: &[(&str, &str)] = &[
    ("Port == 80", "web1"),
    ("Port != 80", "db/1 web-proxy"),
    ("EnableTagOverride == T", "web1"),
    ("EnableTagOverride != 1", "db/1 web-proxy"),
    ("we in Service", "web-proxy web1"),
    ("Service contains we", "web-proxy web1"),
    ("Service not contains we", "db/1"),
    ("we not in Service", "db/1"),
    (r#"Service matches "^w""#, "web-proxy web1"),
    (r"Service not matches `^\w+$`", "web-proxy"),
    ("prod in Tags", "web1"),
    ("Tags not contains v1", "db/1 web-proxy"),
    ("Tags is empty", "db/1 web-proxy"),
    ("Tags is not empty", "web1"),
    ("Meta is empty", "db/1 web-proxy"),
    ("ver in Meta", "web1"),
    ("TaggedAddresses contains lan_ipv4", "web1"),
    ("TaggedAddresses is not empty", "web1"),
    ("Weights.Passing == 3", "web1"),
    ("TaggedAddresses.lan_ipv4.Port == 80", "web1"),
];
const KEYS: &[(&str, &str)] = &[
    (r#"Meta["a-b"] == 1"#, "web1"),
    ("Meta[ `a-b` ] == 1", "web1"),
    ("Meta.ver != 2", "db/1 web-proxy"),
    ("Meta.nope == x", ""),
    ("Meta.nope != x", "db/1 web-proxy web1"),
    ("x in Meta.nope", ""),
    ("x not in Meta.nope", "db/1 web-proxy web1"),
    ("Meta.nope matches x", "db/1 web-proxy web1"),
    ("Meta.nope not matches x", "db/1 web-proxy web1"),
    ("TaggedAddresses.nope.Port == 80", ""),
    ("TaggedAddresses.nope.Port != 80", "db/1 web-proxy web1"),
];
const VALUES: &[(&str, &str)] = &[
    (r#"Service == "w\x65b""#, "web1"),
    (r#"Service == "\u0077eb""#, "web1"),
    (r#"Service == "\167eb""#, "web1"),
    ("Service == `web`", "web1"),
    ("Service == web.x", ""),
    (r#"Port == "0x50""#, "web1"),
    (r#"Port == "0o120""#, "web1"),
    (r#"Port == "0120""#, "web1"),
    (r#"Port == "0b101_0000""#, "web1"),
    (r#"Port == "+80""#, "web1"),
    ("Port == -1", ""),
    ("Service == -0", ""),
    (r#"Service == "\xff""#, ""),
];
const SYNTAX: &[(&str, &str)] = &[
    ("Service", r#"1:8 (7): no match found, expected: "!=", ".", "==", "[", [ \t\r\n] or [a-zA-Z0-9_]"#),
    (
        "a = b",
        r#"1:3 (2): no match found, expected: "!=", "==", "contains", "in", "is", "matches", "not" or [ \t\r\n]"#,
    ),
    (
        " ",
        r#"1:2 (1): no match found, expected: "(", "-", "0", "\"", "`", "not", [ \t\r\n], [1-9] or [a-zA-Z]"#,
    ),
    (
        "Service ==",
        r#"1:11 (10): no match found, expected: "-", "0", "\"", "`", [ \t\r\n], [1-9] or [a-zA-Z]"#,
    ),
    ("Service == web and", r"1:19 (18): no match found, expected: [ \t\r\n]"),
    ("Service == web and(Port == 80)", r"1:19 (18): no match found, expected: [ \t\r\n]"),
    ("Service == web)", r#"1:15 (14): no match found, expected: ".", "[", [ \t\r\n], [a-zA-Z0-9_] or EOF"#),
    (
        "Service == web\n  and Port == x y",
        r#"2:17 (31): no match found, expected: "and", "or", [ \t\r\n] or EOF"#,
    ),
    (
        "not(Service == web)",
        r#"1:4 (3): no match found, expected: "!=", ".", "==", "[", [ \t\r\n] or [a-zA-Z0-9_]"#,
    ),
    (
        "é",
        r#"1:1 (0): no match found, expected: "(", "-", "0", "\"", "`", "not", [ \t\r\n], [1-9] or [a-zA-Z]"#,
    ),
    ("Meta.é == 1", "1:6 (5): no match found, expected: [a-zA-Z]"),
    ("(Service == web", r#"1:16 (15): rule "grouping": Unmatched parentheses"#),
    ("((a == b) or c == d", r#"1:20 (19): rule "grouping": Unmatched parentheses"#),
    (r#"Service == "w"#, r#"1:14 (13): rule "string": Unterminated string literal"#),
    ("Service == `w", r#"1:14 (13): rule "string": Unterminated string literal"#),
    (r#"Service == "a\q""#, r#"1:12 (11): rule "string": invalid syntax"#),
    ("Service ==\n\"a\nb\"", r#"2:1 (11): rule "string": invalid syntax"#),
    (r#"Service == "\400""#, r#"1:12 (11): rule "string": invalid syntax"#),
    (r#"Service == "\"" and x == "\q""#, r#"1:12 (11): rule "string": invalid syntax"#),
    ("Port == 80x", r#"1:11 (10): rule "number": Invalid number literal"#),
    ("Service == 00", r#"1:13 (12): rule "number": Invalid number literal"#),
    ("Service == 1.", r#"1:13 (12): rule "number": Invalid number literal"#),
    ("Service[0] == a", r#"1:9 (8): rule "index": Invalid index"#),
    (
        r#"Service["a == b"#,
        "1:16 (15): rule \"string\": Unterminated string literal\n1:9 (8): rule \"index\": Invalid index",
    ),
    (r#"Service["a" == b"#, r#"1:13 (12): rule "index": Unclosed index expression"#),
    ("a in 3", r#"1:6 (5): rule "match": Invalid selector"#),
    ("a-b in Meta", r#"1:2 (1): no match found, expected: "!=", ".", "==", "[", [ \t\r\n] or [a-zA-Z0-9_]"#),
];
const FIELDS: &[(&str, &str)] = &[
    ("Foo == v", r#"Selector "Foo" is not valid"#),
    ("Meta.x.y == z", r#"Selector "Meta.x.y" is not valid"#),
    ("Service.x == 1", r#"Selector "Service.x" is not valid"#),
    ("Weights.Foo == 1", r#"Selector "Weights.Foo" is not valid"#),
    (
        r#"Meta["a\n\"é"].x == 1"#,
        "1:6 (5): rule \"string\": invalid syntax\n1:12 (11): rule \"index\": Unclosed index expression",
    ),
    ("not == x", r#"Selector "not" is not valid"#),
    ("in in in", r#"Selector "in" is not valid"#),
    ("Weights == 3", r#"Invalid match operator "Equal" for selector "Weights""#),
    ("Tags == prod", r#"Invalid match operator "Equal" for selector "Tags""#),
    ("Port matches v", r#"Invalid match operator "Matches" for selector "Port""#),
    ("Service is empty", r#"Invalid match operator "Is Empty" for selector "Service""#),
    ("Meta.z is empty", r#"Invalid match operator "Is Empty" for selector "Meta.z""#),
    (
        "TaggedAddresses.lan_ipv4 is not empty",
        r#"Invalid match operator "Is Not Empty" for selector "TaggedAddresses.lan_ipv4""#,
    ),
    ("80 in Port", r#"Invalid match operator "In" for selector "Port""#),
    ("Tags not matches x", r#"Invalid match operator "Not Matches" for selector "Tags""#),
    ("Meta != x", r#"Invalid match operator "Not Equal" for selector "Meta""#),
    (
        "Port == v",
        r#"Failed to coerce value "v" for selector "Port": strconv.ParseInt: parsing "v": invalid syntax"#,
    ),
    (
        "Port == 80.5",
        r#"Failed to coerce value "80.5" for selector "Port": strconv.ParseInt: parsing "80.5": invalid syntax"#,
    ),
    (
        r#"Port == """#,
        r#"Failed to coerce value "" for selector "Port": strconv.ParseInt: parsing "": invalid syntax"#,
    ),
    (
        r#"Port == "080""#,
        r#"Failed to coerce value "080" for selector "Port": strconv.ParseInt: parsing "080": invalid syntax"#,
    ),
    (
        r#"Port == "0_8""#,
        r#"Failed to coerce value "0_8" for selector "Port": strconv.ParseInt: parsing "0_8": invalid syntax"#,
    ),
    (
        r#"Port == "_80""#,
        r#"Failed to coerce value "_80" for selector "Port": strconv.ParseInt: parsing "_80": invalid syntax"#,
    ),
    (
        r#"Port == "9223372036854775808""#,
        r#"Failed to coerce value "9223372036854775808" for selector "Port": strconv.ParseInt: parsing "9223372036854775808": value out of range"#,
    ),
    (
        "EnableTagOverride == yes",
        r#"Failed to coerce value "yes" for selector "EnableTagOverride": strconv.ParseBool: parsing "yes": invalid syntax"#,
    ),
    ("Foo == a and Bar == b", r#"Selector "Foo" is not valid"#),
];

const CHECKS: &[(&str, &str)] = &[
    ("Checks.Status == critical", "web1"),
    ("Checks.Status != passing", "web1"),
    ("not Checks.Status == passing", "db/1 web-proxy"),
    ("Checks is empty", "db/1 web-proxy"),
    ("Checks is not empty", "web1"),
    ("prod in Checks.ServiceTags", "web1"),
    ("x not in Checks.ServiceTags", "web1"),
    ("Checks == x", r#"Invalid match operator "Equal" for selector "Checks""#),
    ("Checks.Foo == x", r#"Selector "Checks.Foo" is not valid"#),
    ("Checks.ServiceTags.x == y", r#"Selector "Checks.ServiceTags.x" is not valid"#),
];

#[track_caller]
fn assert_golden(cases: &[(&str, &str)]) {
    for (text, expected) in cases {
        assert_eq!(answer(text), *expected, "{text:?}");
    }
}

#[test]
fn operator_precedence() {
    assert_golden(PRECEDENCE);
}

#[test]
fn each_type_has_its_operators() {
    assert_golden(OPERATORS);
}

/// Contract: 119.
#[test]
fn quoted_and_missing_map_keys() {
    assert_golden(KEYS);
}

#[test]
fn values_follow_go() {
    assert_golden(VALUES);
}

#[test]
fn syntax_errors_are_consul_s() {
    assert_golden(SYNTAX);
}

#[test]
fn fields_and_values_validated_without_rows() {
    assert_golden(FIELDS);
}

#[test]
fn any_matching_list_element_suffices() {
    assert_golden(CHECKS);
}

#[test]
fn invalid_regular_expressions_are_refused() {
    for pattern in ["[", "(", "*", "a{100000}", "((a{90}){90}){90}"] {
        let error = answer(&format!("Service matches `{pattern}`"));
        let start = format!("Failed to compile regular expression \"{pattern}\": error parsing regexp: ");
        assert!(error.starts_with(&start), "{error}");
    }
}

#[test]
fn hostile_input_cannot_overflow_stack() {
    let long = |piece: &str, end: &str| piece.repeat((MAX_TEXT_BYTES - end.len()) / piece.len()) + end;
    let texts = [
        (long("(", ""), "the filter nests deeper than 50 parentheses"),
        (long("((a == b) or ", ""), "the filter nests deeper than 50 parentheses"),
        (long("not (", ""), "the filter nests deeper than 50 parentheses"),
        (long("not ", ""), "no match found, expected: "),
        (long("not ", "Service == web"), "web1"),
        (long("Port==1 or ", "Port==80"), "web1"),
        (long("Port!=1 and ", "Port==80"), "web1"),
        (long("Meta.a", ""), "no match found, expected: "),
        (long("a[\"\\q\"]", ""), "rule \"string\": invalid syntax"),
        (long("\"", ""), "no match found, expected: "),
        (long(" ", ""), "no match found, expected: "),
        (long("not  in  ", ""), "no match found, expected: "),
        (long("x", " == x"), "is not valid"),
    ];
    // Less than half of the smallest stack of a thread in the agent.
    let thread = std::thread::Builder::new().stack_size(768 << 10);
    let answered = thread.spawn(move || {
        for (text, part) in texts {
            let answer = answer(&text);
            assert!(answer.contains(part), "{}…: {:.200}", &text[..20], answer);
        }
        let nested =
            |depth: usize| answer(&format!("{}Service == web{}", "(".repeat(depth), ")".repeat(depth)));
        assert_eq!(nested(MAX_DEPTH), "web1");
        assert!(answer(&"a".repeat(MAX_TEXT_BYTES + 1)).starts_with("the filter has 65537 bytes"));
        assert!(nested(MAX_DEPTH + 1).starts_with("the filter nests deeper"));
    });
    answered.expect("there are threads").join().expect("no assertion failed");
}

#[test]
fn step_limit_spans_rows() {
    let check = Check { output: "a".repeat(64 << 10), ..Check::default() };
    let service = Service { checks: vec![check], ..Service::default() };
    let rows_until_error = |text: &str| {
        let filter = Filter::new(text, &Service::default()).expect("it is valid");
        let mut steps = 0;
        (0..100)
            .find(|_| filter.selects(&service, &mut steps).is_err())
            .inspect(|_| assert!(steps > MAX_STEPS))
    };
    assert_eq!(rows_until_error("Checks.Output matches b"), None);
    assert!(rows_until_error("Checks.Output matches `(a{0,9}){30}b`").is_some_and(|rows| rows < 10));
    assert_eq!(rows_until_error("Port == 0 and b in Checks.Output"), None);
    assert!(FilterError::TooExpensive.is_limit() && !FilterError::Selector(String::new()).is_limit());
}

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,60}") {
        let _ = answer(&text);
    }

    #[test]
    fn no_sequence_of_tokens_panics(tokens in prop::collection::vec(0..TOKENS.len(), 0..24)) {
        let text: String = tokens.into_iter().map(|token| TOKENS[token]).collect();
        let _ = answer(&text);
    }
}

const TOKENS: [&str; 36] = [
    "(",
    ")",
    "[",
    "]",
    ".",
    "\"",
    "`",
    "\\",
    "-",
    "0",
    "7",
    "\n",
    " ",
    " ",
    " ",
    "==",
    "!=",
    "and",
    "or",
    "not",
    "in",
    "is",
    "empty",
    "matches",
    "contains",
    "Service",
    "Port",
    "Tags",
    "Meta",
    "Checks",
    "Status",
    "TaggedAddresses",
    "EnableTagOverride",
    "true",
    "é",
    "*",
];
