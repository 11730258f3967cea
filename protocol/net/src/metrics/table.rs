//! Tables of metrics: each metric once, with its type, name, help and labels. Registration, the
//! series that exist from the start, and the tables of `deploy/metrics.md` follow from them.

use super::registered;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts,
};

/// A metric in the registry.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The name, with its unit.
    pub name: &'static str,
    /// Its type: `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Its help.
    pub help: &'static str,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// The values of its single label whose series exist from the start.
    pub values: &'static [&'static str],
    /// The buckets of a histogram.
    pub buckets: &'static [f64],
}

impl Row {
    /// Creates the row of a metric without labels.
    pub(super) const fn plain(name: &'static str, kind: &'static str, help: &'static str) -> Self {
        Self { name, kind, help, labels: &[], values: &[], buckets: &[] }
    }
}

/// Defines metrics as statics, with `TABLE`, their rows, and `register`, which registers them all.
///
/// A metric is `NAME: Type = "name", "help";`. After the help: `, by ["label"]`; `, of [values]`;
/// `, in [buckets]`: see [`Row`]. An array of counters or histograms has one for each value, in
/// their order.
#[macro_export]
macro_rules! metrics {
    (@slice) => { &[] };
    (@slice $slice:expr) => { &$slice };
    (@row $type:ty, $name:literal, $help:literal, [$($labels:expr)?], [$($values:expr)?], [$($buckets:expr)?]) => {
        $crate::metrics::table::Row {
            name: $name,
            kind: <$type as $crate::metrics::table::Metric>::KIND,
            help: $help,
            labels: $crate::metrics!(@slice $($labels)?),
            values: $crate::metrics!(@slice $($values)?),
            buckets: $crate::metrics!(@slice $($buckets)?),
        }
    };
    ($(
        $vis:vis $id:ident: $type:ty = $name:literal, $help:literal
            $(, by $labels:expr)? $(, of $values:expr)? $(, in $buckets:expr)?;
    )*) => {
        $(
            #[doc = $help]
            $vis static $id: std::sync::LazyLock<$type> = std::sync::LazyLock::new(|| {
                $crate::metrics::table::Metric::registered(
                    &$crate::metrics!(@row $type, $name, $help, [$($labels)?], [$($values)?], [$($buckets)?]),
                )
            });
        )*

        static TABLE: &[$crate::metrics::table::Row] =
            &[$($crate::metrics!(@row $type, $name, $help, [$($labels)?], [$($values)?], [$($buckets)?])),*];

        fn register() {
            $(std::sync::LazyLock::force(&$id);)*
        }
    };
}

/// A type of metrics.
pub trait Metric: Sized {
    /// Its kind, as in [`Row::kind`].
    const KIND: &'static str;

    /// Registers a metric.
    fn registered(row: &Row) -> Self;
}

macro_rules! kinds {
    ($($kind:literal: $plain:ty, $vector:ty, $options:expr;)*) => {$(
        impl Metric for $plain {
            const KIND: &'static str = $kind;

            fn registered(row: &Row) -> Self {
                registered(Self::with_opts($options(row)))
            }
        }

        impl Metric for $vector {
            const KIND: &'static str = $kind;

            fn registered(row: &Row) -> Self {
                let vector = registered(Self::new($options(row), row.labels));
                // Every series exists from the start, as `deploy/metrics.md` promises.
                row.values.iter().for_each(|value| drop(vector.with_label_values(&[value])));
                vector
            }
        }

        impl<const N: usize> Metric for [$plain; N] {
            const KIND: &'static str = $kind;

            fn registered(row: &Row) -> Self {
                let vector = <$vector>::registered(row);
                std::array::from_fn(|index| vector.with_label_values(&[row.values[index]]))
            }
        }
    )*};
}

kinds! {
    "counter": IntCounter, IntCounterVec, options;
    "gauge": IntGauge, IntGaugeVec, options;
    "gauge": Gauge, GaugeVec, options;
    "histogram": Histogram, HistogramVec, histogram_options;
}

fn options(row: &Row) -> Opts {
    Opts::new(row.name, row.help)
}

fn histogram_options(row: &Row) -> HistogramOpts {
    HistogramOpts::new(row.name, row.help).buckets(row.buckets.to_vec())
}
