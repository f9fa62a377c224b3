//! What every ledger promises (`crates/core/src/ledger/port.rs`), as one suite that each adapter
//! runs against handles on one ledger. A new adapter needs a [`Rig`] and a line at the end of this
//! file; another way to the same engine runs what a connection decides.

mod attempts;
mod claims;
mod claims_table;
mod clocks;
mod company;
mod failing;
mod growth;
mod handing;
mod handles;
mod host;
mod jobs;
mod locks;
mod mariadb;
mod memory;
mod overview;
mod pages;
mod plans;
mod postgres;
mod prepared;
mod receipts;
mod recording;
mod retention;
mod rigs;
mod schema;
mod settling;
mod shared;
mod sqlite;
mod standby;
mod text;
mod trace;
mod turns;
mod unsettled;
mod upgrades;
mod verify;

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use onedrop::directory::{Asked, Destination, Home};
use onedrop::ledger::{
    AnyLedger, Attempt, AttemptEnd, AttemptKey, BASE_VERSION, Claim, Confirmed, CopyFacts,
    CopyOnRecord, CopyState, Due, Entry, FilterFields, LeaseTerms, LedgerError, MessageKey,
    Migration, MigrationStep, OpenTurn, Program, RandomValue, Recorded, SCHEMA_VERSION,
    SharedConfig, Standing, ToConfirm, Trace, TraceCopy, TraceFilter, Turn, Window,
};
use onedrop::lock_key::{self, Hash};
use onedrop::message::{AddressFact, Facts, Identity, Message, PartFact};
use onedrop::net::pool::Limits;
use onedrop::outcome::Reason;
use onedrop::store::{Receipt, Way};
use onedrop_core::testing::ports;
use onedrop_kit::{self as support, next};

use host::*;
use ports::{JOIN, LEASE, attempt, delivered, inbox, mail, mail_with_body, message, sent, soon};
use rigs::{MariadbRig, MemoryRig, PostgresRig, SqliteRig};

macro_rules! ledger_contract {
    ($adapter:ident, $rig:expr) => {
        mod $adapter {
            use super::*;

            stamp! { $rig;
                recording {
                    a_message_is_recorded_once,
                    a_message_is_one_whichever_host_asks_first,
                    another_content_under_one_message_id_is_another_message_and_both_are_marked,
                    without_a_message_id_there_is_no_collision,
                    any_bytes_can_be_a_message_id,
                    the_bytes_are_kept_when_given,
                    many_addresses_and_parts_keep_their_order,
                    a_record_is_contended_while_another_host_holds_the_messages_lock,
                    copies_come_back_in_the_order_of_the_destinations,
                    one_message_has_one_row_for_each_account_and_mailbox,
                    a_message_that_is_taken_out_takes_everything_along,
                }
                claims {
                    a_live_lease_is_busy_for_others,
                    a_lease_that_ran_out_leaves_a_doubt_and_raises_the_epoch,
                    a_released_copy_is_free_with_the_doubt_as_before,
                    a_joined_lease_keeps_its_epoch_and_is_in_doubt,
                    a_delivery_that_was_joined_learns_of_the_doubt_in_its_turn,
                    claim_says_the_same_as_record,
                    a_claim_names_its_row_by_its_value_as_well,
                    a_rows_value_cannot_be_guessed,
                    a_call_made_again_finds_its_own_lease,
                    a_lease_is_as_long_as_its_owner_said,
                    a_release_changes_nothing_that_is_not_ours,
                    release_takes_several_claims,
                    of_twenty_that_want_one_copy_one_gets_it,
                }
                clocks {
                    a_callers_time_counts_only_where_the_ledgers_clock_says_so_too,
                    a_clock_that_steps_never_makes_a_live_lease_free_without_a_doubt,
                    a_lease_ends_though_the_clock_was_set_back,
                    a_host_whose_clock_differs_by_an_hour_is_not_believed,
                    another_lease_time_ends_no_lease_sooner_or_later,
                    a_servers_clock_is_told_and_a_file_has_none,
                }
                turns {
                    a_turn_excludes_others_until_it_is_dropped,
                    a_thread_that_panics_gives_up_its_turn,
                    a_handle_that_is_dropped_leaves_no_lock,
                    a_turn_whose_session_was_lost_is_free_and_its_receipt_can_still_be_recorded,
                    a_turn_that_is_not_ours_holds_nothing,
                    a_confirm_that_fails_ends_the_turn,
                    a_handle_has_several_turns_and_each_ends_for_itself,
                    a_turn_ignores_a_lease_that_only_ran_out,
                    exclusion_is_proven_and_leaves_no_lock,
                    twenty_processes_that_take_turns_are_never_two,
                    twenty_threads_that_take_turns_are_never_two,
                }
                receipts {
                    receipts_come_back_as_they_were,
                    a_receipt_can_be_confirmed_again_after_its_turn,
                    a_receipt_is_never_replaced,
                    the_same_receipt_by_another_counts_as_ours,
                    the_first_receipt_wins_whatever_its_epoch,
                    a_receipt_that_comes_second_leaves_a_doubt,
                    a_copy_without_a_name_is_ours_only_under_our_epoch,
                    an_end_is_on_record_only_with_the_receipt,
                    what_a_sent_did_not_take_is_kept_until_it_is_placed,
                    a_receipt_that_was_there_before_a_message_is_told,
                }
                attempts {
                    an_attempts_end_is_on_record,
                    each_attempts_reason_is_on_record,
                    an_attempt_that_recorded_nothing_is_on_record,
                    an_attempt_that_lost_the_race_belongs_to_the_message,
                    each_recipient_of_one_run_has_an_attempt_of_its_own,
                    the_attempt_on_record_and_the_others_end_in_one_call,
                    an_attempt_that_is_gone_keeps_no_other_from_its_end,
                    an_address_is_known_by_the_copies_that_its_attempts_delivered,
                }
                trace {
                    a_message_is_found_by_what_an_administrator_knows,
                    a_trace_is_newest_first_and_limited,
                    a_trace_can_be_filtered,
                    of_very_many_attempts_a_trace_has_the_newest_and_says_how_many_are_left,
                    a_trace_shows_the_state_of_a_copy,
                    what_was_found_without_an_end_of_its_attempt_has_not_failed,
                }
                overview {
                    attempts_of_late_are_counted_by_their_ends,
                    open_copies_are_counted_by_what_left_them,
                    a_copy_that_only_looks_back_is_no_doubt_anywhere,
                    a_sent_that_is_kept_for_long_is_counted,
                    a_host_is_on_record_with_its_program,
                    a_host_that_is_gone_for_long_is_forgotten,
                }
                text {
                    any_text_can_be_recorded,
                    any_text_can_be_asked_for,
                    an_administrators_query_names_an_account,
                    a_query_is_asked_without_the_detail_and_may_look_at_it,
                    a_wrong_query_is_refused_and_the_handle_goes_on,
                    a_querys_second_column_names_the_mailbox,
                }
                schema {
                    a_ledger_has_its_schema_once,
                    a_ledger_without_a_schema_says_so,
                    two_that_migrate_at_once_do_it_once,
                    a_schema_from_the_future_is_refused,
                    the_next_schema_is_used_as_long_as_it_lets_older_programs,
                    a_ledger_from_before_the_first_release_is_refused,
                    the_first_delivery_says_what_all_hosts_have_alike,
                    a_record_rests_on_the_list_of_fields_that_is_in_force,
                    a_key_of_a_later_version_is_compared_once_it_is_on_record,
                    of_eight_hosts_that_each_add_a_key_all_keys_stay,
                    of_twenty_first_deliveries_that_differ_one_says_what_holds,
                }
                verify {
                    copies_to_verify_come_in_pages_by_account,
                    a_copy_is_verified_though_a_later_message_has_an_earlier_second,
                    copies_that_one_lease_placed_are_left_out_unless_all_are_asked_for,
                    a_copy_to_verify_comes_as_it_is_on_record,
                    the_window_holds_what_is_recent_and_what_needs_a_second_look,
                    a_copy_is_settled_where_it_is_as_it_was_read,
                    the_latest_copies_are_those_placed_of_the_newest_rows,
                    a_way_that_was_proven_is_on_record_until_it_was_seen_to_be_wrong,
                }
                settling {
                    a_copy_that_is_due_is_leased_by_no_delivery_and_its_bytes_are_kept,
                    a_copy_that_was_claimed_is_made_due_with_its_lease_and_its_doubt,
                    a_recipients_copy_that_a_lease_has_left_in_doubt_is_for_settle,
                    what_settle_has_to_do_comes_in_pages_by_account,
                    a_watched_copy_is_looked_at_again_when_its_time_has_come,
                    a_copy_is_left_to_the_sender_where_it_is_as_it_was_read,
                    another_message_with_the_same_id_in_the_same_mailbox_is_known,
                    what_is_kept_goes_with_the_last_shared_copy_of_the_message,
                    of_twenty_that_settle_one_copy_one_gets_it,
                }
                handles {
                    a_session_that_died_while_it_was_kept_costs_no_call_an_error,
                    a_connection_is_used_again,
                    a_call_waits_for_a_connection_and_says_when_none_came_free,
                    connections_are_closed_when_nobody_uses_them,
                    the_ledgers_time_is_known_from_its_first_word_on,
                    threads_share_a_handle,
                }
                locks {
                    a_lock_excludes_others_until_it_is_given_back,
                    a_slot_whose_lease_was_taken_out_is_claimed_with_the_next_epoch,
                    a_lease_whose_owner_is_no_value_of_ours_is_listed_and_stolen,
                    as_many_hold_a_lock_as_it_has_slots,
                    of_twenty_that_want_three_slots_no_two_get_one,
                    a_free_slot_goes_to_the_claim_that_has_waited_longest,
                    the_lowest_free_slots_are_left_to_those_that_wait,
                    the_lowest_free_slots_are_left_in_each_case,
                    a_lock_that_was_given_back_is_claimed_at_once,
                    one_that_waits_for_another_slot_or_is_gone_keeps_nobody_waiting,
                    epochs_only_grow,
                    a_lease_that_ran_out_is_lost_once_another_has_it,
                    a_lease_that_ran_out_lasts_again_while_nobody_else_has_it,
                    a_claim_made_again_finds_its_own,
                    a_lock_given_back_twice_was_ours,
                    a_lock_is_stolen_after_its_lease_or_by_force,
                    asking_takes_no_lock_and_tells_who_has_it,
                    names_are_taken_as_they_are,
                    locks_of_another_schema_are_refused,
                }
                jobs {
                    a_job_comes_back_as_it_was_put_on_record,
                    jobs_come_by_name_with_the_ledgers_clock,
                    times_come_back_to_the_millisecond_also_those_far_away,
                    any_text_of_a_job_comes_back,
                    a_change_holds_only_on_the_revision_that_was_seen,
                    of_twenty_that_change_a_job_at_once_one_does,
                    of_twenty_that_end_a_run_at_once_one_does,
                    a_job_has_one_run_of_a_due_time_and_try,
                    the_last_try_of_a_due_time_is_known,
                    a_run_ends_once,
                    of_a_job_the_latest_runs_are_kept,
                    a_skip_has_ended_as_it_is_added,
                    a_change_made_again_finds_its_own,
                    a_job_is_removed_with_its_runs,
                    a_job_that_is_removed_while_it_is_changed_is_either,
                    only_runs_that_ended_long_ago_are_pruned,
                    several_prune_at_once_and_each_run_counts_once,
                    jobs_of_another_schema_are_refused,
                    what_no_program_writes_is_said_so,
                }
                retention {
                    a_message_older_than_the_memory_is_claimed_in_doubt_and_looks_back,
                    the_first_ledger_of_a_site_remembers_all_of_known_age,
                    a_copy_left_to_settle_of_an_old_message_looks_back,
                    a_purge_takes_messages_whole_and_moves_the_memory_on,
                    a_purge_passes_by_what_a_delivery_may_still_write,
                    bytes_of_a_sent_that_was_never_tried_are_not_purged,
                    attempts_raw_bytes_and_facts_go_each_in_its_time,
                    attempts_at_a_message_whose_facts_are_erased_go_at_their_own_age,
                    a_claim_whose_row_was_purged_confirms_nothing,
                    a_number_that_is_another_messages_names_none,
                    a_forgotten_copy_is_free_in_doubt_and_nobodys,
                    an_account_has_a_placed_copy_from_its_first_receipt_on_until_it_is_forgotten,
                    forget_passes_by_what_a_delivery_may_still_write,
                    what_stands_elsewhere_is_forgotten_there_alone,
                    a_copy_that_is_forgotten_before_settle_writes_it_stays_due,
                    what_an_attempt_said_stays_when_its_copy_is_forgotten,
                    what_was_placed_since_a_time_is_forgotten,
                    a_forgotten_copy_says_whether_its_bytes_are_on_record,
                    an_account_is_erased_but_for_hashes_and_times,
                    what_anothers_sent_still_needs_is_passed_by_until_it_is_settled,
                    a_purge_beside_records_of_the_same_messages_loses_no_doubt,
                    the_end_of_a_purge_is_on_record,
                }
                unsettled {
                    what_may_stand_twice_is_looked_at_again_however_old,
                    what_is_left_to_settle_is_looked_at_until_that_is_over,
                    a_purge_beside_claims_of_the_same_messages_leaves_nothing_half,
                }
                pages {
                    a_name_leads_to_its_messages_page_by_page,
                    a_part_of_a_sender_or_subject_is_found_within_a_range,
                    a_story_is_of_one_message,
                    failures_are_newest_first_and_by_reason_and_name,
                    attempts_are_counted_by_minute_and_end,
                    copies_that_want_a_look_are_told_the_oldest_first,
                }
                company {
                    messages_recorded_at_once_are_each_what_they_would_be_alone,
                    one_that_is_contended_keeps_the_others_from_nothing,
                    more_than_may_share_a_transaction_are_each_on_record,
                    each_receipt_has_an_outcome_of_its_own,
                    records_and_receipts_at_once_are_each_what_they_would_be_alone,
                }
            }
        }
    };
}

/// What a connection decides: locks and sessions, calls made again, statements that are not
/// prepared, a schema that changes under it, and a value of each type. Everything else is the same
/// whichever way a call takes to the engine, which runs all of it.
macro_rules! connection_contract {
    ($way:ident, $rig:expr) => {
        mod $way {
            use super::*;

            stamp! { $rig;
                recording {
                    a_message_is_recorded_once,
                    any_bytes_can_be_a_message_id,
                    a_record_is_contended_while_another_host_holds_the_messages_lock,
                }
                claims {
                    a_live_lease_is_busy_for_others,
                    a_call_made_again_finds_its_own_lease,
                    of_twenty_that_want_one_copy_one_gets_it,
                }
                clocks {
                    a_callers_time_counts_only_where_the_ledgers_clock_says_so_too,
                }
                turns {
                    a_turn_excludes_others_until_it_is_dropped,
                    a_thread_that_panics_gives_up_its_turn,
                    a_handle_that_is_dropped_leaves_no_lock,
                    a_turn_whose_session_was_lost_is_free_and_its_receipt_can_still_be_recorded,
                    a_turn_that_is_not_ours_holds_nothing,
                    a_confirm_that_fails_ends_the_turn,
                    a_handle_has_several_turns_and_each_ends_for_itself,
                    a_turn_ignores_a_lease_that_only_ran_out,
                    exclusion_is_proven_and_leaves_no_lock,
                    twenty_processes_that_take_turns_are_never_two,
                    twenty_threads_that_take_turns_are_never_two,
                }
                receipts {
                    receipts_come_back_as_they_were,
                    what_a_sent_did_not_take_is_kept_until_it_is_placed,
                }
                attempts {
                    the_attempt_on_record_and_the_others_end_in_one_call,
                }
                trace {
                    a_trace_can_be_filtered,
                }
                text {
                    any_text_can_be_recorded,
                    an_administrators_query_names_an_account,
                    a_wrong_query_is_refused_and_the_handle_goes_on,
                }
                schema {
                    a_ledger_without_a_schema_says_so,
                    two_that_migrate_at_once_do_it_once,
                    the_next_schema_is_used_as_long_as_it_lets_older_programs,
                    of_twenty_first_deliveries_that_differ_one_says_what_holds,
                }
                settling {
                    of_twenty_that_settle_one_copy_one_gets_it,
                }
                handles {
                    a_session_that_died_while_it_was_kept_costs_no_call_an_error,
                    a_connection_is_used_again,
                    a_call_waits_for_a_connection_and_says_when_none_came_free,
                    connections_are_closed_when_nobody_uses_them,
                    the_ledgers_time_is_known_from_its_first_word_on,
                    threads_share_a_handle,
                }
                locks {
                    a_lock_excludes_others_until_it_is_given_back,
                    of_twenty_that_want_three_slots_no_two_get_one,
                    a_claim_made_again_finds_its_own,
                }
                jobs {
                    times_come_back_to_the_millisecond_also_those_far_away,
                    of_twenty_that_change_a_job_at_once_one_does,
                    a_change_made_again_finds_its_own,
                }
                unsettled {
                    a_purge_beside_claims_of_the_same_messages_leaves_nothing_half,
                }
                company {
                    messages_recorded_at_once_are_each_what_they_would_be_alone,
                    one_that_is_contended_keeps_the_others_from_nothing,
                    each_receipt_has_an_outcome_of_its_own,
                    records_and_receipts_at_once_are_each_what_they_would_be_alone,
                }
            }
        }
    };
}

macro_rules! stamp {
    ($rig:expr; $($subject:ident { $($fact:ident),* $(,)? })*) => {
        $($(
            #[test]
            fn $fact() {
                $subject::$fact(&$rig);
            }
        )*)*
    };
}

/// Makes `many` calls at the same time; returns what they came to, in their order.
fn at_once<T: Send>(many: usize, call: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let barrier = Barrier::new(many);
    thread::scope(|scope| {
        let (barrier, call) = (&barrier, &call);
        let start = |n| {
            scope.spawn(move || {
                barrier.wait();
                call(n)
            })
        };
        let threads: Vec<_> = (0..many).map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

ledger_contract!(in_memory, MemoryRig::default());
ledger_contract!(on_sqlite, SqliteRig::new());
ledger_contract!(on_postgres, PostgresRig::shared());
ledger_contract!(on_mariadb, MariadbRig::shared());
connection_contract!(on_postgres_through_pgbouncer, PostgresRig::pooled());
