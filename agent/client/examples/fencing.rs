//! A store that checks fencing tokens: it rejects a write by a former holder of the lock.
//!
//! Usage: `cargo run -p lockmesh-client --example fencing`, with an agent that `lockmesh dev`
//! started, or that `LOCKMESH_HTTP_ADDR` names.

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

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let client = Client::from_env()?;
    let lock = Lock::new(&client, "examples/fencing");
    let mut store = Store::default();

    let first = lock.acquire().await?;
    // A Consul agent grants locks too, but without fences.
    let first_fence = first.fence().unwrap_or_default();
    // Simulates a pause of the first holder: its lock is granted to another one.
    first.release().await?;

    let second = lock.acquire().await?;
    let second_fence = second.fence().unwrap_or_default();
    println!("second holder, fence {second_fence}: written {}", store.write("second", second_fence));

    // The first holder wakes up and does not know that it has lost the lock.
    println!("first holder, fence {first_fence}: written {}", store.write("first", first_fence));
    println!("the value is from the {} holder", store.value);
    second.release().await?;
    Ok(())
}
