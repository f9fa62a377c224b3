//! Threads of which one runs at a time, in a time of their own. A task runs until it pauses; then
//! the one whose pause ends first goes on, and of several the one that chance (or an enumeration)
//! picks. Time passes only while all pause. The system's threads are kept for the next run.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use onedrop::clock::Clock;

use crate::chance::Chance;

/// What a process that has crashed unwinds with.
struct Crashed;

/// Lets one thread go on.
struct Baton {
    is_given: AtomicBool,
    thread: Thread,
}

thread_local! {
    static BATON: Arc<Baton> =
        Arc::new(Baton { is_given: AtomicBool::new(false), thread: thread::current() });
    /// The task that runs on this thread.
    static TASK: Cell<Option<usize>> = const { Cell::new(None) };
}

impl Baton {
    fn of_this_thread() -> Arc<Baton> {
        BATON.with(Arc::clone)
    }

    fn give(&self) {
        self.is_given.store(true, Ordering::Release);
        self.thread.unpark();
    }

    /// On the thread whose baton it is.
    fn wait(&self) {
        while !self.is_given.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The work of a task; returns whose task it was.
type Work = Box<dyn FnOnce() -> Arc<Scheduler> + Send>;

/// Threads that are kept from run to run.
#[derive(Default)]
pub struct Pool {
    idle: Mutex<Vec<Worker>>,
}

#[derive(Clone)]
struct Worker {
    baton: Arc<Baton>,
    inbox: Arc<Mutex<Option<Work>>>,
}

impl Pool {
    /// Lets an idle thread, or another one, do `work`; the baton is its.
    fn run(self: &Arc<Self>, work: Work) {
        let idle = lock(&self.idle).pop();
        let worker = idle.unwrap_or_else(|| self.worker());
        *lock(&worker.inbox) = Some(work);
        worker.baton.give();
    }

    fn worker(self: &Arc<Self>) -> Worker {
        let (tell, told) = mpsc::channel();
        let pool = Arc::clone(self);
        thread::spawn(move || {
            let worker = Worker { baton: Baton::of_this_thread(), inbox: Arc::default() };
            let _ = tell.send(worker.clone());
            loop {
                worker.baton.wait();
                let work = lock(&worker.inbox).take();
                if let Some(work) = work {
                    let scheduler = work();
                    lock(&pool.idle).push(worker.clone());
                    scheduler.hand_over(None);
                }
            }
        });
        told.recv().expect("a thread")
    }
}

struct Task {
    process: usize,
    /// When its pause ends; `None` while it runs or waits for its helpers, and when it has ended.
    due: Option<Duration>,
    stands: Stands,
    /// How many threads help it, side by side; and whom it helps.
    helpers: usize,
    helps: Option<usize>,
}

/// Where a task's thread is.
enum Stands {
    /// It has none yet.
    New(Work),
    Waits(Arc<Baton>),
}

#[derive(Default)]
struct Process {
    is_dead: bool,
    frozen_until: Duration,
    /// For how long its machine was suspended: [`Instant`] stands still then.
    suspended: Duration,
}

type Event = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    now: Duration,
    tasks: Vec<Task>,
    processes: Vec<Process>,
    events: Vec<(Duration, Event)>,
    /// What panicked, and was no crash.
    panics: Vec<String>,
}

impl State {
    fn due(&self, task: &Task) -> Option<Duration> {
        task.due.map(|due| due.max(self.processes[task.process].frozen_until))
    }
}

/// What comes next.
enum Next {
    Event(Event),
    Begins(Work),
    GoesOn(usize, Arc<Baton>),
    Nothing,
}

pub struct Scheduler {
    state: Mutex<State>,
    chance: Mutex<Chance>,
    base: Instant,
    pool: Arc<Pool>,
    driver: Arc<Baton>,
}

impl std::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scheduler")
    }
}

impl Scheduler {
    /// Driven by this thread.
    pub fn new(pool: &Arc<Pool>, chance: Chance) -> Arc<Scheduler> {
        Arc::new(Scheduler {
            state: Mutex::default(),
            chance: Mutex::new(chance),
            base: Instant::now(),
            pool: Arc::clone(pool),
            driver: Baton::of_this_thread(),
        })
    }

    pub fn now(&self) -> Duration {
        lock(&self.state).now
    }

    pub fn chance(&self) -> MutexGuard<'_, Chance> {
        lock(&self.chance)
    }

    /// What was decided, once all is over.
    pub fn decided(&self) -> Chance {
        self.chance().clone()
    }

    /// Something that happens at its time, of itself.
    pub fn at(&self, when: Duration, event: impl FnOnce() + Send + 'static) {
        lock(&self.state).events.push((when, Box::new(event)));
    }

    /// Another process, whose work begins now. It is given its number.
    pub fn spawn(self: &Arc<Self>, work: impl FnOnce(usize) + Send + 'static) {
        let mut state = lock(&self.state);
        let (process, task) = (state.processes.len(), state.tasks.len());
        let scheduler = Arc::clone(self);
        let work: Work = Box::new(move || {
            scheduler.run(task, || work(process));
            scheduler
        });
        let due = Some(state.now);
        state.processes.push(Process::default());
        let stands = Stands::New(work);
        state.tasks.push(Task { process, due, stands, helpers: 0, helps: None });
    }

    /// Runs until there is nothing left to do; returns what panicked.
    pub fn drive(&self) -> Vec<String> {
        self.hand_over(None);
        self.driver.wait();
        std::mem::take(&mut lock(&self.state).panics)
    }

    /// One task, to its end.
    fn run(&self, task: usize, work: impl FnOnce()) {
        TASK.set(Some(task));
        let end = catch_unwind(AssertUnwindSafe(work));
        TASK.set(None);
        let mut state = lock(&self.state);
        if let Err(panic) = end
            && !panic.is::<Crashed>()
        {
            state.panics.push(onedrop::text::of_panic(panic));
        }
        let now = state.now;
        if let Some(helped) = state.tasks[task].helps {
            let helped = &mut state.tasks[helped];
            helped.helpers -= 1;
            if helped.helpers == 0 {
                // It may still be at its own part; then it pauses anyway.
                helped.due.get_or_insert(now);
            }
        }
    }

    /// The task of this thread pauses, and others go on. Unwinds when its process is dead.
    pub fn pause(&self, time: Duration) {
        let Some(task) = TASK.get() else {
            lock(&self.state).now += time;
            return;
        };
        let process = {
            let mut state = lock(&self.state);
            let process = state.tasks[task].process;
            if !state.processes[process].is_dead {
                state.tasks[task].due = Some(state.now + time);
            }
            process
        };
        if !self.is_dead(process) {
            self.wait(task);
        }
        self.go_on_or_unwind(process);
    }

    /// Until it is picked again.
    fn wait(&self, task: usize) {
        let baton = Baton::of_this_thread();
        lock(&self.state).tasks[task].stands = Stands::Waits(Arc::clone(&baton));
        if !self.hand_over(Some(task)) {
            baton.wait();
        }
    }

    /// Picks who goes on; true if it is `me`, and the thread need not wait.
    fn hand_over(&self, me: Option<usize>) -> bool {
        loop {
            match self.next() {
                Next::Event(event) => event(),
                Next::Begins(work) => {
                    self.pool.run(work);
                    return false;
                }
                Next::GoesOn(task, _) if Some(task) == me => return true,
                Next::GoesOn(_, baton) => {
                    baton.give();
                    return false;
                }
                Next::Nothing => {
                    self.driver.give();
                    return false;
                }
            }
        }
    }

    fn next(&self) -> Next {
        let mut state = lock(&self.state);
        let first = state.tasks.iter().filter_map(|task| state.due(task)).min();
        let event = (0..state.events.len()).min_by_key(|at| state.events[*at].0);
        if let Some(at) = event
            && first.is_none_or(|first| state.events[at].0 <= first)
        {
            let (when, event) = state.events.remove(at);
            state.now = state.now.max(when);
            return Next::Event(event);
        }
        let Some(first) = first else { return Next::Nothing };
        let ready: Vec<usize> = (0..state.tasks.len())
            .filter(|at| state.due(&state.tasks[*at]) == Some(first))
            .collect();
        let picked = ready[self.chance().pick(ready.len())];
        state.now = state.now.max(first);
        let task = &mut state.tasks[picked];
        task.due = None;
        if let Stands::Waits(baton) = &task.stands {
            return Next::GoesOn(picked, Arc::clone(baton));
        }
        let begun = Stands::Waits(Baton::of_this_thread());
        match std::mem::replace(&mut task.stands, begun) {
            Stands::New(work) => Next::Begins(work),
            Stands::Waits(baton) => Next::GoesOn(picked, baton),
        }
    }

    /// Ends the process of this task, wherever its other threads are.
    pub fn crash(&self, process: usize) {
        let mut state = lock(&self.state);
        let now = state.now;
        state.processes[process].is_dead = true;
        state.processes[process].frozen_until = now;
        for task in state.tasks.iter_mut().filter(|task| task.process == process) {
            task.due = task.due.map(|_| now);
        }
    }

    /// Ends all processes.
    pub fn crash_all(&self) {
        let mut state = lock(&self.state);
        let now = state.now;
        for process in &mut state.processes {
            (process.is_dead, process.frozen_until) = (true, now);
        }
        state.tasks.iter_mut().for_each(|task| task.due = task.due.map(|_| now));
    }

    /// Lets the process stand still for `time`, perhaps with its machine suspended.
    pub fn freeze(&self, process: usize, time: Duration, is_suspended: bool) {
        let mut state = lock(&self.state);
        let until = state.now + time;
        let process = &mut state.processes[process];
        process.frozen_until = process.frozen_until.max(until);
        if is_suspended {
            process.suspended += time;
        }
    }

    pub fn is_dead(&self, process: usize) -> bool {
        lock(&self.state).processes[process].is_dead
    }

    /// Unwinds if the process is dead; false where it is dead and unwinds already.
    pub fn go_on_or_unwind(&self, process: usize) -> bool {
        let is_dead = TASK.get().is_some() && self.is_dead(process);
        if is_dead && !thread::panicking() {
            resume_unwind(Box::new(Crashed));
        }
        !is_dead
    }

    fn side_by_side(&self, threads: usize, work: &(dyn Fn() + Sync)) {
        let Some(me) = TASK.get() else { return work() };
        let process = lock(&self.state).tasks[me].process;
        thread::scope(|scope| {
            for _ in 1..threads {
                let (tell, told) = mpsc::channel();
                scope.spawn(move || {
                    let baton = Baton::of_this_thread();
                    let (tell_task, task) = mpsc::channel();
                    let _ = tell.send((Arc::clone(&baton), tell_task));
                    let Ok(task) = task.recv() else { return };
                    baton.wait();
                    self.run(task, work);
                    self.hand_over(None);
                });
                let (baton, tell_task): (_, mpsc::Sender<usize>) = told.recv().expect("a thread");
                let mut state = lock(&self.state);
                let (due, stands) = (Some(state.now), Stands::Waits(baton));
                state.tasks[me].helpers += 1;
                state.tasks.push(Task { process, due, stands, helpers: 0, helps: Some(me) });
                let _ = tell_task.send(state.tasks.len() - 1);
            }
            let end = catch_unwind(AssertUnwindSafe(work));
            while lock(&self.state).tasks[me].helpers > 0 {
                self.wait(me);
            }
            lock(&self.state).tasks[me].due = None;
            if let Err(panic) = end {
                resume_unwind(panic);
            }
        });
        self.go_on_or_unwind(process);
    }
}

/// The time of one process.
#[derive(Debug)]
pub struct ProcessClock {
    pub scheduler: Arc<Scheduler>,
    pub process: Option<usize>,
}

impl Clock for ProcessClock {
    fn now(&self) -> Instant {
        let state = lock(&self.scheduler.state);
        let suspended =
            self.process.map_or(Duration::ZERO, |process| state.processes[process].suspended);
        // Two days on, since a machine may have been suspended that long.
        self.scheduler.base + state.now - suspended
    }

    fn since_boot(&self) -> Option<Duration> {
        Some(self.scheduler.now())
    }

    fn sleep(&self, time: Duration) {
        self.scheduler.pause(time);
    }

    fn random(&self) -> u64 {
        self.scheduler.chance().number()
    }

    fn side_by_side(&self, threads: usize, work: &(dyn Fn() + Sync)) {
        self.scheduler.side_by_side(threads, work);
    }
}
