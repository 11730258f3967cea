//! Reads metrics in Prometheus' text format line by line, without Lockmesh's own code.

use std::collections::BTreeMap;

/// The metrics of a process.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// The type of each family.
    pub families: BTreeMap<String, String>,
    /// The value of each series, keyed by its name with the labels as written.
    pub series: BTreeMap<String, f64>,
}

impl Figures {
    /// Parses a page. Panics if it is malformed or contains a series or family twice.
    #[track_caller]
    pub fn parse(text: &str) -> Self {
        let mut figures = Self::default();
        for line in text.lines() {
            if let Some(family) = line.strip_prefix("# TYPE ") {
                let (name, kind) = family.split_once(' ').expect("a family has a kind");
                let before = figures.families.insert(name.into(), kind.into());
                assert_eq!(before, None, "{name} is there twice");
            } else if !line.starts_with('#') {
                let (series, value) = line.rsplit_once(' ').expect("a series has a value");
                let value = value.parse().unwrap_or_else(|_| panic!("not a number: {line}"));
                let before = figures.series.insert(series.into(), value);
                assert_eq!(before, None, "{series} is there twice");
            }
        }
        figures
    }

    /// Returns the value of a series.
    #[track_caller]
    pub fn value(&self, series: &str) -> f64 {
        *self.series.get(series).unwrap_or_else(|| panic!("missing series {series}"))
    }
}

#[cfg(test)]
mod tests {
    use super::Figures;

    #[test]
    fn parses_values_and_types() {
        let page =
            "# HELP a_total All\n# TYPE a_total counter\na_total{b=\"c d\"} 7\n# TYPE e gauge\ne -0.5\n";
        let figures = Figures::parse(page);
        assert_eq!((figures.value("a_total{b=\"c d\"}"), figures.value("e")), (7.0, -0.5));
        assert_eq!(figures.families["a_total"], "counter");
    }

    #[test]
    #[should_panic(expected = "e is there twice")]
    fn duplicate_metric_is_rejected() {
        Figures::parse("e 1\ne 2\n");
    }
}
