//! The alert rules and the dashboard for operators: each is explained, and none mixes clusters.

use crate::monitoring::deployed;
use lockmesh_tests::readme::links;
use lockmesh_tests::tidy::tree;
use serde_json::Value;
use std::collections::BTreeSet;

/// The base of the runbooks' URLs, which operators replace by the address of their copy.
const RUNBOOKS: &str = "https://lockmesh.example/deploy/operations/";

/// The functions that combine series. The result keeps only the labels of their `by` clause.
const AGGREGATIONS: [&str; 7] = ["sum", "max", "min", "avg", "count", "group", "topk"];

/// A rule of `alerts.yml`: its name and its lines.
struct Rule<'r> {
    name: &'r str,
    lines: Vec<&'r str>,
}

impl<'r> Rule<'r> {
    /// Returns the value of a key, or an empty text.
    fn value(&self, key: &str) -> &'r str {
        let value = self.lines.iter().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(": "));
        value.unwrap_or_default()
    }
}

fn rules(text: &str) -> Vec<Rule<'_>> {
    let mut rules: Vec<Rule<'_>> = Vec::new();
    for line in text.lines() {
        match (line.trim().strip_prefix("- alert: "), rules.last_mut()) {
            (Some(name), _) => rules.push(Rule { name, lines: Vec::new() }),
            (None, Some(rule)) => rule.lines.push(line),
            (None, None) => {}
        }
    }
    rules
}

/// Returns the aggregations of an expression that do not keep the cluster.
fn mixes_clusters(expression: &str) -> Vec<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut mixed = Vec::new();
    for name in AGGREGATIONS {
        for (at, _) in expression.match_indices(name) {
            let (before, after) = (&expression[..at], &expression[at + name.len()..]);
            let is_word = !before.ends_with(is_part) && !after.starts_with(is_part);
            if is_word && !after.trim_start().starts_with("by (cluster") {
                mixed.push(&expression[at..]);
            }
        }
    }
    mixed
}

#[test]
fn alerts_have_severity_and_runbook() {
    let text = deployed("alerts.yml");
    let rules = rules(&text);
    assert!(rules.len() > 30, "{}", rules.len());
    for rule in &rules {
        let name = rule.name;
        assert!(name.starts_with("Lockmesh"), "{name}");
        let severity = rule.value("labels");
        let is_known = ["info", "warning", "critical"].iter().any(|known| severity.contains(known));
        assert!(is_known, "{name}: severity {severity}");
        for key in ["summary", "description"] {
            assert!(rule.value(key).len() > 10, "{name} has no {key}");
        }
        let runbook = rule.value("runbook_url");
        let page = runbook.strip_prefix(RUNBOOKS);
        let page = page.unwrap_or_else(|| panic!("{name}: runbook_url is not below {RUNBOOKS}: {runbook}"));
        let link = format!("[runbook](operations/{page})");
        assert_eq!(links::broken(&tree::top(), "deploy/alerts.yml", &link), [""; 0], "{name}");
    }
}

#[test]
fn every_alert_has_firing_test() {
    let (text, tests) = (deployed("alerts.yml"), deployed("alerts_test.yml"));
    let expected = |name: &str| tests.contains(&format!("labels: '{{alertname=\"{name}\","));
    let all = rules(&text);
    let silent: Vec<&str> = all.iter().map(|rule| rule.name).filter(|name| !expected(name)).collect();
    assert!(silent.is_empty(), "no test of deploy/alerts_test.yml expects {silent:?}");
}

#[test]
fn no_alert_mixes_clusters() {
    let text = deployed("alerts.yml");
    for rule in rules(&text) {
        let lines = rule.lines.iter().take_while(|line| !line.trim().starts_with("labels:"));
        let expression = lines.copied().collect::<Vec<_>>().join("\n");
        let mixed = mixes_clusters(&expression);
        assert!(mixed.is_empty(), "{}: not by (cluster …): {mixed:?}", rule.name);
    }
    assert_eq!(mixes_clusters("max(a) + sum by (cluster, le) (b_sum)").len(), 1);
    assert_eq!(mixes_clusters("sum by (le, cluster) (max_over_time(a[1h]))").len(), 1);
}

/// Returns the panels of the dashboard, without its rows.
fn panels(dashboard: &Value) -> Vec<&Value> {
    let all = dashboard["panels"].as_array().expect("a list of panels");
    all.iter().filter(|panel| panel["type"] != "row").collect()
}

#[test]
fn panels_have_title_unit_and_cluster() {
    let dashboard: Value = serde_json::from_str(&deployed("grafana-dashboard.json")).expect("it is JSON");
    let panels = panels(&dashboard);
    assert!(panels.len() > 20, "{}", panels.len());
    let mut ids = BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().unwrap_or_default();
        assert!(!title.is_empty(), "{panel}");
        assert!(ids.insert(panel["id"].as_u64()), "{title}: its id is not unique");
        let unit = panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap_or_default();
        assert!(!unit.is_empty(), "{title} has no unit");
        assert!(panel["description"].as_str().is_some_and(|text| text.len() > 10), "{title}: no description");
        let targets = panel["targets"].as_array().expect("a panel has targets");
        assert!(!targets.is_empty(), "{title}");
        for expression in targets.iter().map(|target| target["expr"].as_str().unwrap_or_default()) {
            assert!(mixes_clusters(expression).is_empty(), "{title}: {expression}");
            let series = expression.matches(['{']).count();
            let chosen = expression.matches("{cluster=~\"$cluster\"").count();
            assert!(series > 0 && series == chosen, "{title}: not of the chosen cluster: {expression}");
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
    }
    let variables = dashboard["templating"]["list"].as_array().expect("a list of variables");
    let names: Vec<&str> = variables.iter().filter_map(|variable| variable["name"].as_str()).collect();
    assert_eq!(names, ["datasource", "cluster"]);
}
