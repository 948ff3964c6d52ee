//! A gateway of several processes, and what is done to it and to its database.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use model::{Clock as _, SystemClock, Timestamp};
use tokio::task::JoinSet;

use crate::faults::{API_PROCESSES, Fault, WORKER_PROCESSES};
use crate::http::{Connection, Exchange};
use crate::kills::{COMEBACK_MAX, LOOK_EVERY};
use crate::processes::Server;
use crate::rig::Rig;
use testkit::wire::Wire;

pub struct Fleet<'a> {
    rig: &'a Rig,
    apis: Vec<Server>,
    workers: Vec<Server>,
    /// When a worker was started after another had been killed.
    pub worker_restarts: Vec<Timestamp>,
    /// How those ended that were asked to.
    pub exits: Vec<ExitStatus>,
    /// What was wrong with what was seen on the way.
    pub complaints: Vec<String>,
}

impl<'a> Fleet<'a> {
    pub fn start(rig: &'a Rig) -> Self {
        Self {
            rig,
            apis: (0..API_PROCESSES).map(|number| rig.start_api(number)).collect(),
            workers: (0..WORKER_PROCESSES).map(|number| rig.start_worker(number)).collect(),
            worker_restarts: Vec::new(),
            exits: Vec::new(),
            complaints: Vec::new(),
        }
    }

    /// Does it and mends it; what has to recover may still be at it.
    pub async fn suffer(&mut self, fault: Fault, cut_for: Duration, dice: &mut impl rand::Rng) {
        match fault {
            Fault::KillApi => self.apis[dice.random_range(0..API_PROCESSES)].kill_and_restart().await,
            Fault::KillWorker => {
                self.workers[dice.random_range(0..WORKER_PROCESSES)].kill_and_restart().await;
                self.worker_restarts.push(SystemClock.now());
            }
            Fault::ReplaceWorker => {
                let worker = &mut self.workers[dice.random_range(0..WORKER_PROCESSES)];
                self.exits.push(worker.terminate().await);
                worker.restart();
            }
            Fault::KillDatabase => self.rig.database.kill_and_recover().await,
            Fault::Cut(wire) => self.cut(wire, cut_for).await,
        }
    }

    /// A process that is still getting up when the wire is cut could not say so: it waits for its database first.
    async fn cut(&mut self, wire: Wire, cut_for: Duration) {
        self.await_ready().await;
        self.rig.database.set_wire(wire);
        // Late in the cut, since what was found before it is believed for a second.
        tokio::time::sleep(cut_for / 2).await;
        let (_, ready) = tokio::join!(tokio::time::sleep(cut_for / 2), self.readiness());
        self.rig.database.set_wire(Wire::Whole);
        let healed = Instant::now();
        self.await_ready().await;
        println!("         ready again {:.1?} after {wire:?} was healed", healed.elapsed());
        for exchange in ready {
            let is_right = matches!(&exchange, Exchange::Answered(answer)
                if answer.status == 503 && answer.retry_after_secs.is_some() && answer.body.contains("store"));
            if !is_right {
                self.complaints.push(format!("cut off from its database, /readyz says {exchange:?}"));
            }
        }
    }

    async fn await_ready(&self) {
        let deadline = Instant::now() + COMEBACK_MAX;
        let is_ready =
            |exchange: &Exchange| matches!(exchange, Exchange::Answered(answer) if answer.status == 200);
        while !self.readiness().await.iter().all(is_ready) {
            assert!(Instant::now() < deadline, "not every process is ready within {COMEBACK_MAX:?}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// What each process that takes emails in says of itself.
    async fn readiness(&self) -> Vec<Exchange> {
        let request = b"GET /readyz HTTP/1.1\r\nHost: chaos.test\r\n\r\n";
        let mut asking = JoinSet::new();
        for address in self.rig.api_addresses.clone() {
            asking.spawn(async move { Connection::to(&[address], 0).exchange(request).await });
        }
        asking.join_all().await
    }

    /// Asks all to end.
    pub async fn terminate(&mut self) {
        for server in self.workers.iter_mut().chain(&mut self.apis) {
            self.exits.push(server.terminate().await);
        }
    }
}
