//! Transactions in the model: every step is tried, and if any fails, nothing is changed.

use super::model::{Acquired, Model, Step};
use super::operation::{KvWrite, Reply, Seen, TxnStep};

impl Model {
    /// Executes a transaction; an error contains the right answer to its client.
    pub(super) fn txn(&mut self, step: Step, steps: &[TxnStep], told: Option<&Reply>) -> Result<(), String> {
        if self.is_refused_for_delays(step, steps, told)? {
            return Ok(());
        }
        let mark = self.mark();
        let (mut seen, mut failed) = (Vec::new(), Vec::new());
        for (number, txn_step) in (0..).zip(steps) {
            match self.txn_step(step, txn_step) {
                Some(keys) => seen.extend(keys),
                None => failed.push(number),
            }
        }
        if !failed.is_empty() {
            self.rewind(mark);
            return told_to_have_failed(&failed, told);
        }
        match told {
            None => Ok(()),
            Some(Reply::Txn(results)) => self.told_right(&seen, results),
            Some(_) => Err("that it took effect was expected".into()),
        }
    }

    /// Returns `true` if lock-delays explain its failure: then no step was tried. Otherwise all its
    /// locks were open.
    fn is_refused_for_delays(
        &mut self,
        step: Step,
        steps: &[TxnStep],
        told: Option<&Reply>,
    ) -> Result<bool, String> {
        let locked = (0..).zip(steps).filter_map(|(number, txn_step)| match txn_step {
            TxnStep::Write(KvWrite::Acquire { key, .. }) => Some((number, key)),
            _ => None,
        });
        let closed: Vec<(u32, &String)> = locked.filter(|(_, key)| self.may_be_closed(key)).collect();
        let failed: &[u32] = match told {
            Some(Reply::TxnFailed(failed)) => failed,
            _ => &[],
        };
        let explained = |number: &u32| closed.iter().any(|(closed, _)| closed == number);
        if !failed.is_empty() && failed.iter().all(explained) {
            return Ok(true);
        }
        closed.into_iter().try_for_each(|(_, key)| self.open(step, key))?;
        Ok(false)
    }

    /// Executes one step: returns the keys of its result, or `None` if it fails.
    fn txn_step(&mut self, step: Step, txn_step: &TxnStep) -> Option<Vec<String>> {
        let (holds, shown) = match txn_step {
            TxnStep::Write(write) => return self.txn_write(step, write),
            TxnStep::Get { key } => (self.entry(key).is_some(), vec![key.clone()]),
            TxnStep::GetTree { prefix } => (true, self.under(prefix).map(|(key, _)| key.clone()).collect()),
            TxnStep::CheckIndex { key, index } => {
                let holds = self.entry(key).is_some_and(|entry| entry.modified.may_be(*index));
                (holds, vec![key.clone()])
            }
            TxnStep::CheckSession { key, session } => {
                let holds =
                    self.entry(key).is_some_and(|entry| entry.session.as_deref().unwrap_or("") == session);
                (holds, vec![key.clone()])
            }
            TxnStep::CheckNotExists { key } => (self.entry(key).is_none(), Vec::new()),
        };
        holds.then_some(shown)
    }

    fn txn_write(&mut self, step: Step, write: &KvWrite) -> Option<Vec<String>> {
        let (holds, shown) = match write {
            KvWrite::Set { key, value } => (self.set(step, key, value), Some(key)),
            KvWrite::Cas { key, value, expected } => (self.cas(step, key, value, *expected), Some(key)),
            KvWrite::Acquire { key, value, session } => {
                let acquired = self.acquire(step, key, value, session);
                (matches!(acquired, Acquired::Granted(_)), Some(key))
            }
            KvWrite::Release { key, value, session } => (self.release(step, key, value, session), Some(key)),
            KvWrite::Enqueue { .. } | KvWrite::Leave { .. } | KvWrite::StopWaiting { .. } => (false, None),
            KvWrite::Delete { key } => (self.delete(key), None),
            KvWrite::DeleteCas { key, expected } => (self.delete_cas(key, *expected), None),
            KvWrite::DeleteTree { prefix } => (self.delete_tree(prefix), None),
        };
        holds.then(|| shown.cloned().into_iter().collect())
    }

    /// Checks that these keys match the results. A key with several results must match the last
    /// one.
    fn told_right(&self, keys: &[String], results: &[Seen]) -> Result<(), String> {
        let shown: Vec<&String> = results.iter().map(|seen| &seen.key).collect();
        if shown != keys.iter().collect::<Vec<_>>() {
            return Err(format!("results for {keys:?} were expected"));
        }
        for (place, seen) in results.iter().enumerate() {
            let is_last = !results[place + 1..].iter().any(|later| later.key == seen.key);
            match self.entry(&seen.key) {
                Some(entry) if is_last && !entry.is(seen) => {
                    return Err(format!("{}={entry} was expected", seen.key));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn told_to_have_failed(failed: &[u32], told: Option<&Reply>) -> Result<(), String> {
    match told {
        None => Ok(()),
        Some(Reply::TxnFailed(steps)) if steps == failed => Ok(()),
        Some(_) => Err(format!("a failure of the steps {failed:?} was expected")),
    }
}
