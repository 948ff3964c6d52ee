//! The laws every store must pass, one file per part of the port, and `simulation`, which plays the whole port
//! against a model from a seed. A law is a plain function over a fresh store; [`store_contract!`] holds the only
//! list of them and makes a test of each. What is due to one store's bug becomes a law here, for all.

pub mod accept;
pub mod alerts;
pub mod begin;
pub mod cancel;
pub mod claim;
pub mod companies;
pub mod dead_letters;
pub mod erase;
pub mod fairness;
pub mod feedback;
pub mod fleet;
pub mod history;
pub mod hold;
pub mod idempotency;
pub mod intake;
pub mod isolation;
pub mod late;
pub mod leases;
pub mod limits;
pub mod lookup;
pub mod lost_connections;
pub mod messages;
pub mod providers;
pub mod recipients;
pub mod retention;
pub mod routes;
pub mod settle;
pub mod simulation;
pub mod stage;
pub mod suppressions;
pub mod tallies;
pub mod templates;
pub mod upkeep;

/// A test of every law. `$fresh` is an expression that can be awaited once per test and gives something that
/// dereferences to a new, empty store and keeps alive what the store lives in. `another()` opens the same store once more,
/// as another process would.
///
/// ```ignore
/// async fn fresh() -> Box<MyStore> { … }
/// store::store_contract!(fresh());
/// ```
#[macro_export]
macro_rules! store_contract {
    ($fresh:expr) => {
        $crate::store_contract! { @laws $fresh;
            accept [
                an_email_reads_back_field_by_field,
                a_bare_email_reads_back,
                content_reads_back,
                history_begins_with_the_acceptance,
                a_batch_is_stored_whole,
                a_batch_is_all_or_none,
                the_daily_limit_is_exact,
                the_daily_limit_starts_anew_at_midnight,
                days_of_limits_are_forgotten,
                a_daily_limit_counts_what_came_before_it,
            ] racing [the_daily_limit_holds_in_a_race]
            idempotency [
                the_same_request_gets_the_first_answer,
                a_kept_answer_is_read,
                another_request_under_the_key_is_refused,
                hashes_of_both_kinds_are_kept,
                keys_belong_to_their_company,
                a_key_is_forgotten_after_its_time,
                the_daily_limit_leaves_keys_alone,
            ] racing [
                twenty_identical_requests_at_once_make_one_email,
                different_requests_under_one_key_at_once_make_one_email,
            ]
            claim [
                nothing_is_claimed_before_it_is_due,
                a_claim_leases_the_email,
                a_claim_brings_the_whole_email,
                a_claimed_email_is_not_claimed_again,
                fence_and_attempts_grow_with_every_claim,
                the_limit_is_respected,
                the_size_is_respected,
                priority_decides_within_a_company,
                a_batch_takes_the_most_urgent,
                the_expired_are_not_claimed,
                the_expired_do_not_upset_the_order,
                a_claim_does_a_bounded_amount_of_work,
                a_retry_is_claimed_when_it_is_due,
                the_due_are_found_among_the_many,
                what_is_given_back_is_claimed_again,
            ] racing []
            fairness [
                a_newcomer_overtakes_a_backlog_one_by_one,
                a_newcomer_overtakes_a_backlog_in_eights,
                a_newcomer_overtakes_a_backlog_in_sixty_fours,
                weights_divide_the_claims,
                idleness_earns_no_credit,
                nothing_is_left_idle_for_weights,
                unused_turns_go_to_others,
                who_only_waits_blocks_nobody,
                an_empty_claim_means_nothing_is_due,
                many_companies_are_all_served,
            ] racing []
            limits [
                a_company_switched_off_waits,
                what_arrives_while_switched_off_waits,
                a_paused_company_waits_until_resumed,
                a_company_with_room_is_found_behind_any_number,
                concurrency_is_bounded,
                every_end_frees_a_place,
                a_changed_limit_counts_at_once,
                the_rate_is_kept_over_any_second,
                a_pause_earns_no_burst,
                the_rate_of_one_does_not_slow_another,
                what_the_rate_holds_back_comes_later,
            ] racing []
            routes [
                a_claim_keeps_to_its_routes,
                a_backlog_that_is_not_asked_for_hides_nothing,
                priority_counts_across_routes,
                limits_count_across_routes,
                an_email_can_change_its_route,
                routes_do_not_disturb_the_order_of_turns,
            ] racing []
            providers [
                starts_keep_the_rate,
                starts_are_given_while_there_is_room,
                starts_come_together_or_not_at_all,
                a_clock_that_is_ahead_counts,
                a_note_is_changed_by_who_saw_the_last,
            ] racing [starts_keep_the_rate_in_a_race, a_note_is_changed_once_in_a_race]
            begin [
                a_begin_is_recorded,
                an_attempt_begins_once,
                the_cancelled_is_not_begun,
                who_was_taken_over_begins_nothing,
                the_finished_and_the_unknown_are_not_begun,
            ] racing [an_attempt_begins_once_in_a_race, cancel_and_begin_do_not_both_win]
            settle [
                sent_is_recorded,
                sent_without_an_id_is_recorded,
                the_id_of_ses_has_its_own_place,
                retry_is_recorded,
                failed_is_recorded,
                expired_is_recorded,
                a_release_gives_the_attempt_back,
                what_is_put_back_was_never_claimed,
                a_requeue_keeps_the_attempt,
                an_unknown_outcome_stays_on_record,
                the_last_failure_is_the_last,
                events_are_kept_as_given,
                a_settlement_counts_once,
            ] racing []
            late [
                the_taken_over_changes_nothing,
                a_late_send_keeps_its_provider_id,
                an_outdated_version_settles_nothing,
                what_has_ended_stays_ended,
                a_result_for_nothing_is_late,
                a_report_made_again_is_recorded_once,
                an_end_told_again_is_recorded_once,
            ] racing [worker_and_sweep_do_not_both_win]
            leases [
                renewing_prolongs_the_lease,
                renewing_works_at_the_provider,
                renewing_names_the_lost,
                only_the_owner_renews,
                lost_leases_are_those_that_ran_out,
                a_lost_lease_tells_where_it_was,
                the_sweep_is_refused_after_a_renewal,
                two_sweeps_act_once,
                unfinished_starts_are_counted,
                an_untouched_suspect_is_not_blamed,
                a_suspect_is_counted_when_its_work_begins,
                a_finished_start_ends_the_count,
                comings_and_goings_disturb_nobody,
                a_claim_nobody_waits_for_is_put_back,
            ] racing []
            hold [
                the_held_is_never_claimed,
                a_person_lets_the_held_go,
                the_held_fails_when_its_time_is_over,
                a_late_claim_does_not_free_the_held,
                the_waiting_expire,
                what_is_not_waiting_does_not_expire,
                expiry_goes_in_steps,
                the_switched_off_expire,
            ] racing []
            cancel [
                cancel_in_every_status,
                cancel_is_too_late_at_the_provider,
                cancel_works_after_a_release,
                retry_now_in_every_status,
                retry_now_delays_nobody,
            ] racing [cancel_counts_once, cancel_and_claim_agree]
            intake [
                the_unchecked_await_intake,
                what_passed_enters_the_queue,
                what_passed_is_found_under_its_envelope,
                what_was_refused_is_invalid,
                intake_ends_once,
                starts_of_intake_are_counted,
                the_end_of_intake_ends_the_count,
                only_the_unchecked_begin_intake,
            ] racing [intake_ends_once_in_a_race, intake_begins_once_in_a_race]
            lookup [
                the_missing_read_as_nothing,
                the_company_of_an_email_is_found,
                a_list_holds_whole_emails,
                every_filter_finds_what_it_names,
                filters_follow_the_email,
                the_recipient_filter_takes_either_id,
                the_address_filter_ignores_case,
                pages_give_each_email_once,
                pages_split_a_millisecond,
                what_is_under_way_is_found,
                pages_stand_still_while_emails_arrive,
                a_garbage_cursor_does_no_harm,
            ] racing []
            history [
                events_are_told_in_order,
                what_is_new_has_higher_numbers,
                events_of_a_time_are_found,
                a_span_is_bounded,
                what_is_deleted_leaves_a_gap,
            ] racing [no_event_is_missed_in_a_race]
            isolation [
                another_companys_email_is_a_missing_one,
                a_missing_email_is_plainly_missing,
                another_companys_things_are_out_of_reach,
            ] racing []
            dead_letters [
                the_failed_are_listed,
                every_filter_finds_its_dead_letters,
                every_filter_replays_what_it_names,
                a_replay_starts_a_new_series,
                what_may_have_got_through_keeps_its_series,
                a_replayed_email_can_be_sent,
                a_replay_of_the_delayed_lives_as_long,
                only_the_failed_are_replayed,
                a_replay_goes_in_steps,
                a_dropped_dead_letter_stays_failed,
                only_dead_letters_are_dropped,
            ] racing [a_replay_counts_once_in_a_race]
            companies [
                a_company_reads_back,
                companies_are_listed_by_name,
                names_are_unique,
                a_company_is_updated,
                a_key_reads_back,
                a_key_brings_its_company_of_now,
                a_key_is_revoked_once,
                the_last_use_never_goes_back,
            ] racing [names_are_unique_in_a_race]
            recipients [
                a_named_recipient_is_created,
                recipients_are_found_together,
                nobody_named_is_nobody_created,
                an_external_id_is_one_person,
                a_document_is_one_person,
                identifiers_are_learned,
                an_own_id_is_one_person,
                a_batch_names_one_person_once,
                a_batch_makes_people_known_in_order,
                people_belong_to_their_company,
                another_companys_recipient_is_never_touched,
                names_stay_with_their_email,
                people_come_in_pages,
            ] racing []
            feedback [
                a_report_moves_the_email_by_the_table,
                a_report_leaves_times_and_reasons,
                a_repeated_report_changes_nothing,
                the_order_of_reports_does_not_matter,
                a_report_finds_its_email_by_the_providers_id,
                a_report_fills_in_the_providers_id,
                an_early_report_is_carried_out_later,
                the_hopeless_hide_nothing,
                a_report_may_overtake_the_worker,
                a_held_email_is_released_by_a_report,
                reports_and_dead_letters,
                reports_keep_the_counts,
                each_recipient_has_a_state,
                only_hard_bounces_and_complaints_suppress,
                reports_are_kept_as_they_came,
            ] racing [a_report_is_carried_out_once_in_a_race]
            messages [
                the_id_of_a_late_send_finds_its_email,
                an_early_report_waits_for_the_late_result,
                every_id_of_an_email_finds_it,
                ids_go_with_their_email,
            ] racing []
            suppressions [
                a_suppression_reads_back,
                an_address_is_listed_once,
                a_suppression_is_lifted,
                suppressions_come_in_pages_newest_first,
                a_list_belongs_to_its_company,
                a_suppression_survives_the_erasure,
            ] racing []
            alerts [
                bounces_and_complaints_raise_alerts,
                one_alert_per_subject_and_window,
                an_alert_raises_no_alert,
                repeated_failures_make_a_problem,
                our_own_refusals_do_not_count,
                a_failure_counts_for_whom_was_refused,
                a_refused_copy_counts_while_the_email_is_sent,
                old_failures_do_not_count,
                a_problem_is_cleared,
                alerts_and_problems_come_in_pages,
                an_alert_ends_once,
                the_erased_are_in_no_alert,
            ] racing [one_alert_in_a_race]
            templates [
                a_template_reads_back,
                versions_are_counted,
                a_list_has_the_newest_of_each,
                a_deleted_name_goes_on_counting,
                a_template_belongs_to_its_company,
            ] racing [no_version_is_lost_in_a_race]
            tallies [
                an_entity_is_summed_up,
                old_days_are_forgotten,
                a_summary_begins_at_a_day,
                a_companys_days_are_counted,
                every_tallied_kind_is_counted,
                counts_survive_the_erasure,
            ] racing []
            erase [
                the_finished_are_forgotten,
                the_waiting_are_cancelled_first,
                what_is_in_flight_is_pending,
                what_is_in_flight_holds_up_nobody,
                an_intake_that_began_before_is_refused,
                copies_are_forgotten,
                the_recipient_is_forgotten,
                another_spelling_is_the_same_person,
                mail_to_others_goes_out_without_them,
                nobody_else_is_touched,
                forgetting_goes_in_steps,
                a_step_looks_at_a_bounded_number,
                a_similar_address_is_another_person,
                the_forgotten_may_come_back,
            ] racing []
            upkeep [
                the_numbers_follow_one_email,
                every_status_is_counted,
                the_numbers_are_those_of_a_count,
                the_oldest_due_time_is_known,
                the_environment_is_set_once,
                the_cursor_key_is_set_once,
                a_closed_store_refuses,
            ] racing [the_environment_is_set_once_in_a_race, the_cursor_key_is_set_once_in_a_race]
            retention [
                content_goes_before_the_email,
                only_the_finished_are_deleted,
                every_end_is_pruned,
                pruning_goes_in_steps,
                dead_letters_leave_their_list,
                a_replay_starts_the_time_anew,
                old_keys_are_deleted,
                pruning_disturbs_nobody,
                the_young_hold_up_nobody,
                pruning_keeps_up_with_arrivals,
            ] racing []
        }
        $crate::store_contract! { @fleet $fresh;
            no_email_is_claimed_twice,
            limits_hold_over_all,
            a_key_is_used_once_by_all,
        }
    };
    (@fleet $fresh:expr; $($law:ident),* $(,)?) => {
        mod fleet {
            #[allow(unused_imports, reason = "an expression may name nothing of its surroundings")]
            use super::*;

            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $law() {
                let fixture = $fresh.await;
                let mut stores = Vec::new();
                for _ in 0..$crate::contract::fleet::PROCESSES {
                    stores.push(fixture.another().await);
                }
                let stores: Vec<&dyn $crate::Store> = stores.iter().map(|store| store as _).collect();
                $crate::contract::fleet::$law(&stores).await;
            })*
        }
    };
    (@laws $fresh:expr; $($part:ident [$($law:ident),* $(,)?] racing [$($race:ident),* $(,)?])*) => {
        $(mod $part {
            #[allow(unused_imports, reason = "an expression may name nothing of its surroundings")]
            use super::*;

            $(#[tokio::test]
            async fn $law() {
                let fixture = $fresh.await;
                $crate::contract::$part::$law(&*fixture).await;
            })*

            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $race() {
                let fixture = $fresh.await;
                $crate::contract::$part::$race(&*fixture).await;
            })*
        })*
    };
}
