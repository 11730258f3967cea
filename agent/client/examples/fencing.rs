//! A store that checks fencing tokens: it rejects a write by a former holder of the lock.
//!
//! The store compares each token with the highest one that it has seen. That is safe on its own,
//! but accepts a former holder until the next one has written. As a second line it also asks the
//! servers whether the token is current. That alone is not safe: the lock may pass on between the
//! answer and the write.
//!
//! Usage: `cargo run -p lockmesh-client --example fencing`, with an agent that `lockmesh dev`
//! started, or that `LOCKMESH_HTTP_ADDR` names.

use lockmesh_client::shape::lockmesh::FenceClaim;
use lockmesh_client::{Client, Error, Lock};

/// A value with the fence of its last writer. In a database: a column that each `UPDATE` compares.
#[derive(Default)]
struct Store {
    value: String,
    fence: u64,
}

impl Store {
    /// Writes the value unless a later holder has already written. Returns `true` if it was
    /// written.
    fn write(&mut self, value: &str, fence: u64) -> bool {
        if fence < self.fence {
            return false;
        }
        (self.value, self.fence) = (value.into(), fence);
        true
    }
}

const KEY: &str = "examples/fencing";

/// Returns `true` if the token is that of the lock's current grant.
async fn is_current(client: &Client, fence: u64) -> Result<bool, Error> {
    let claim = FenceClaim { key: KEY.into(), fence };
    let verdicts = client.kv().verify_fences(&[claim], None).await?;
    Ok(verdicts.iter().all(|verdict| verdict.is_current))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let client = Client::from_env()?;
    let lock = Lock::new(&client, KEY);
    let mut store = Store::default();

    let first = lock.acquire().await?;
    // A Consul agent grants locks too, but without fences.
    let first_fence = first.fence().unwrap_or_default();
    // Simulates a pause of the first holder: its lock is granted to another one.
    first.release().await?;

    let second = lock.acquire().await?;
    let second_fence = second.fence().unwrap_or_default();

    // The first holder wakes up and does not know that it has lost the lock. The store would accept
    // its write, because the second holder has not written yet.
    println!("first holder, fence {first_fence}: current {}", is_current(&client, first_fence).await?);
    println!("second holder, fence {second_fence}: current {}", is_current(&client, second_fence).await?);
    println!("second holder, fence {second_fence}: written {}", store.write("second", second_fence));

    // From now on the store rejects it without a request.
    println!("first holder, fence {first_fence}: written {}", store.write("first", first_fence));
    println!("the value is from the {} holder", store.value);
    second.release().await?;
    Ok(())
}
