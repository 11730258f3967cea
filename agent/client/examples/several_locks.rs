//! Moves money between accounts in six tasks at a time. A task needs the locks of two accounts, and
//! acquires both or none. The tasks name them in different orders, but no deadlock is possible.
//!
//! Usage: `cargo run -p lockmesh-client --example several_locks`, with an agent that `lockmesh dev`
//! started, or that `LOCKMESH_HTTP_ADDR` names.

use lockmesh_client::{Client, Error, Lock, Outcome, Read, Txn};
use tokio::task::JoinSet;

const ACCOUNTS: [&str; 3] = ["examples/accounts/a", "examples/accounts/b", "examples/accounts/c"];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let client = Client::from_env()?;
    for account in ACCOUNTS {
        client.kv().put(account, "100", 0).await?;
    }
    let mut tasks = JoinSet::new();
    for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 1), (2, 0), (0, 2)] {
        tasks.spawn(transfer(client.clone(), ACCOUNTS[from], ACCOUNTS[to], 10));
    }
    for result in tasks.join_all().await {
        result?;
    }
    let mut total = 0;
    for account in ACCOUNTS {
        total += balance(&client, account).await?;
    }
    println!("all accounts together have {total}");
    Ok(())
}

async fn transfer(client: Client, from: &str, to: &str, amount: i64) -> Result<(), Error> {
    let keys = [from, to].map(|account| format!("{account}/lock"));
    let guard = Lock::many(&client, keys.clone()).acquire().await?;
    let fences: Vec<_> = guard.fences().collect();
    println!("{amount} from {from} to {to}, fences {fences:?}");
    let (left, sum) = (balance(&client, from).await? - amount, balance(&client, to).await? + amount);
    // The agent writes nothing if the session no longer holds one of the locks.
    let held = keys.iter().fold(Txn::new(), |txn, key| txn.check_session(key, guard.session()));
    let txn = held.set(from, left.to_string(), 0).set(to, sum.to_string(), 0);
    if let Outcome::RolledBack(errors) = client.txn(&txn, &Read::default()).await? {
        println!("nothing was moved: {errors:?}");
    }
    guard.release().await?;
    Ok(())
}

async fn balance(client: &Client, account: &str) -> Result<i64, Error> {
    let entry = client.kv().get(account, &Read::default()).await?.value;
    let text = entry.map(|entry| String::from_utf8_lossy(&entry.value).into_owned()).unwrap_or_default();
    Ok(text.parse().unwrap_or_default())
}
