//! An image that is read for another server, with the checksums of what was read.

use super::digest::{Digest, of_all, of_part};
use crate::store::{Backup, RawPart, StoreError};
use bytes::Bytes;
use lockmesh_protocol::rpc::ImagePart;
use lockmesh_protocol::wire::encode_into;

/// One image.
pub(crate) struct ImageSource {
    image: Backup,
    mark: Bytes,
    digests: Vec<Digest>,
}

impl ImageSource {
    pub(crate) fn new(image: Backup) -> Self {
        let mut mark = Vec::new();
        encode_into(image.mark(), &mut mark);
        Self { image, mark: mark.into(), digests: Vec::new() }
    }

    /// Reads a part: any that was read before, or the one that follows; none where there is no such part.
    pub(crate) fn part(&mut self, image: u64, number: u32) -> Result<Option<ImagePart>, StoreError> {
        let Some(RawPart { rows, last }) = self.image.raw_part(number)? else { return Ok(None) };
        let digest = of_part(number, &self.mark, &rows);
        if self.digests.len() == number as usize {
            self.digests.push(digest);
        }
        let whole = last.then(|| of_all(&self.digests));
        let (mark, rows) = (self.mark.clone(), rows.into());
        Ok(Some(ImagePart { image, number, mark, rows, digest, whole }))
    }
}
