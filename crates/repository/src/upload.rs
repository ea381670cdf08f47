//! Uploads containers: separate threads send them, for all sessions of a repository that run in
//! this process.

use std::sync::{Arc, MutexGuard};

use bytes::Bytes;
use silt_format::{Error, ObjectKind, Result};
use silt_storage::AlignedBuffer;

use crate::objects::Objects;
use crate::sync::lock;
use crate::upload_queue::{Account, Queue, QueueState, Upload, Uploader};

/// A piece of a container, lent to the storage while it is being sent.
struct Lent(Arc<AlignedBuffer>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Sends containers until it is told to stop.
fn send_all(shared: &Queue, objects: &Objects) {
    while let Some((account, upload)) = shared.next() {
        send_one(shared, objects, account, upload);
    }
}

fn send_one(shared: &Queue, objects: &Objects, account: u64, upload: Upload) {
    let number = upload.number;
    // A panic fails this container but does not end the thread, because others wait for it.
    let send = std::panic::AssertUnwindSafe(|| send(objects, upload));
    let result = std::panic::catch_unwind(send)
        .unwrap_or_else(|_| Err(Error::invalid("sending a container panicked")));
    shared.sent(account, result.map(|()| number));
}

/// Sends one container; its buffers are used again if nothing uses them any more.
fn send(objects: &Objects, upload: Upload) -> Result<()> {
    let Upload { name, body, end, .. } = upload;
    let lent: Vec<_> = body.into_pieces().into_iter().map(Arc::new).collect();
    let pieces = lent.iter().map(|piece| Bytes::from_owner(Lent(Arc::clone(piece))));
    let pieces: Vec<Bytes> = pieces.chain([end.into()]).collect();
    let result = objects.put_pieces(&name, ObjectKind::Container, &pieces);
    drop(pieces);
    // A buffer that is still being sent, after a lost response, is not reused.
    objects.buffers.pieces.keep(lent.into_iter().filter_map(Arc::into_inner).map(|mut piece| {
        piece.clear();
        piece
    }));
    result.map(drop)
}

/// The uploads of one session. Others may upload at the same time: all share threads and buffers.
pub struct Uploads {
    objects: Arc<Objects>,
    uploader: Arc<Uploader>,
    account: u64,
    /// Maximum number of containers being sent, including those of other sessions.
    limit: usize,
}

impl Uploads {
    /// Returns the uploads of a new session. At most `limit` containers are sent at once; one more
    /// may be filled meanwhile.
    pub fn new(objects: &Arc<Objects>, limit: usize) -> Self {
        let mut shared = lock(&objects.uploader.0);
        let uploader = shared.upgrade().unwrap_or_else(|| Arc::new(Uploader(Arc::default())));
        *shared = Arc::downgrade(&uploader);
        drop(shared);
        let account = {
            let mut state = uploader.0.state();
            state.next_account += 1;
            let account = state.next_account;
            state.accounts.insert(account, Account::default());
            account
        };
        Self { objects: Arc::clone(objects), uploader, account, limit: limit.max(1) }
    }

    /// Queues a container; waits while the maximum number is being sent.
    pub fn submit(&self, upload: Upload) -> Result<()> {
        let shared = self.shared();
        let mut state = shared.state();
        if self.objects.context.env.is_single_threaded() {
            let account = self.account(&mut state);
            account.check()?;
            account.under_way += 1;
            state.sending += 1;
            drop(state);
            send_one(shared, &self.objects, self.account, upload);
            return self.account(&mut shared.state()).check();
        }
        loop {
            self.account(&mut state).check()?;
            if state.waiting.len() + state.sending < self.limit {
                break;
            }
            state = shared.wait(state);
        }
        self.account(&mut state).under_way += 1;
        state.waiting.push_back((self.account, upload));
        if state.threads.len() < self.limit {
            let (shared, objects) = (Arc::clone(shared), Arc::clone(&self.objects));
            state.threads.push(std::thread::spawn(move || send_all(&shared, &objects)));
        }
        shared.changed.notify_all();
        Ok(())
    }

    /// Waits until every container handed over is durable; returns their numbers.
    pub fn drain(&self) -> Result<Vec<u32>> {
        let mut state = self.settled();
        let account = self.account(&mut state);
        account.check()?;
        Ok(std::mem::take(&mut account.durable))
    }

    fn shared(&self) -> &Arc<Queue> {
        &self.uploader.0
    }

    fn account<'s>(&self, state: &'s mut QueueState) -> &'s mut Account {
        state.accounts.entry(self.account).or_default()
    }

    /// Waits until none of its containers is under way.
    fn settled(&self) -> MutexGuard<'_, QueueState> {
        let mut state = self.shared().state();
        while self.account(&mut state).under_way > 0 {
            state = self.shared().wait(state);
        }
        state
    }
}

impl Drop for Uploads {
    /// Drops unsent containers and waits for those being sent, so that nothing is written after the
    /// owner has ended.
    fn drop(&mut self) {
        let mut state = self.shared().state();
        let before = state.waiting.len();
        state.waiting.retain(|(account, _)| *account != self.account);
        let dropped = before - state.waiting.len();
        self.account(&mut state).under_way -= dropped;
        drop(state);
        self.settled().accounts.remove(&self.account);
        self.shared().changed.notify_all();
    }
}
