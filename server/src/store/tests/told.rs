//! The record of the newest commit: it is read back, and rejected if it is torn or another store's.

use crate::store::disk::Disk;
use crate::store::names::TOLD;
use crate::store::testing::{Failure, FaultyDisk};
use crate::store::told::{ToldFile, read};
use std::sync::Arc;

#[test]
fn the_number_that_was_told_last_is_read_and_another_pairs_or_a_torn_one_is_not() {
    let disk = FaultyDisk::default();
    let place: Arc<dyn Disk> = Arc::new(disk.clone());
    assert_eq!(read(&*place, 7).expect("the disk is good"), 0);
    let mut told = ToldFile::new(Arc::clone(&place), 7);
    told.tell(1);
    told.tell(2);
    assert_eq!(read(&*place, 7).expect("the disk is good"), 2);
    assert_eq!(read(&*place, 8).expect("the disk is good"), 0, "another store's");
    disk.fail(Some(Failure::FileFull(TOLD)));
    told.tell(3);
    disk.fail(None);
    told.tell(4);
    assert_eq!(read(&*place, 7).expect("the disk is good"), 4);
    let whole = disk.contents()[TOLD].clone();
    for place_of in 0..whole.len() {
        let mut torn = whole.clone();
        torn[place_of] ^= 1;
        disk.put(TOLD, torn);
        assert_eq!(read(&*place, 7).expect("the disk is good"), 0, "byte {place_of}");
    }
}
