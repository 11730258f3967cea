//! The record of the newest commit: it is read back, and rejected if it is torn or another store's.

use crate::store::disk::Disk;
use crate::store::names::REPORTED;
use crate::store::reported::{ReportedFile, read};
use crate::store::testing::{Failure, FaultyDisk};
use std::sync::Arc;

#[test]
fn intact_own_number_is_read() {
    let disk = FaultyDisk::default();
    let place: Arc<dyn Disk> = Arc::new(disk.clone());
    assert_eq!(read(&*place, 7).expect("the disk is good"), 0);
    let mut told = ReportedFile::new(Arc::clone(&place), 7);
    told.record(1);
    told.record(2);
    assert_eq!(read(&*place, 7).expect("the disk is good"), 2);
    assert_eq!(read(&*place, 8).expect("the disk is good"), 0, "another store's");
    disk.fail(Some(Failure::FileFull(REPORTED)));
    told.record(3);
    disk.fail(None);
    told.record(4);
    assert_eq!(read(&*place, 7).expect("the disk is good"), 4);
    let whole = disk.contents()[REPORTED].clone();
    for place_of in 0..whole.len() {
        let mut torn = whole.clone();
        torn[place_of] ^= 1;
        disk.put(REPORTED, torn);
        assert_eq!(read(&*place, 7).expect("the disk is good"), 0, "byte {place_of}");
    }
}
