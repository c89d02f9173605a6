"""One named story for each rule and each derived figure, with the answer worked out by hand.

Each is put to the ledger and to the oracle: two readings of the rules that may not differ from the hand's.

Longer than other files: it is a list of the rules, in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from timelines import replay

from .oracle import account
from .stories import story

# A compilation seen, if an empty one: nothing is guessed about the first step (R5).
SEEN = " / compile warm @0"

Ask = Callable[..., dict[str, Any]]


@pytest.fixture(params=[replay, account], ids=["ledger", "oracle"])
def ask(request: pytest.FixtureRequest) -> Ask:
    def answer(text: str, **question: Any) -> dict[str, Any]:
        return dict(request.param(story(text), **question))

    return answer


# --- R1 life --------------------------------------------------------------------------------------------------------


def test_life_lasts_from_the_first_job_start_to_the_last_job_end(ask: Ask) -> None:
    answer = ask("job 10-40 / step 1 @12-20 / heartbeat @90")
    assert answer["elapsed_s"] == 30
    assert answer["seconds"] == {"productive": 8, "other": 22}
    assert answer["goodput"] == 8 / 30
    assert ask("job 10-40 / step 1 @12-20", at=1000)["seconds"] == answer["seconds"]


def test_life_lasts_to_now_while_the_job_is_open(ask: Ask) -> None:
    assert ask("job 10- / step 1 @12-20", at=50)["seconds"] == {"productive": 8, "other": 32}
    # The latest timestamp is now where nobody says otherwise.
    assert ask("job 10- / step 1 @12-20 / heartbeat @23")["elapsed_s"] == 13
    # A job that ends after the query is open at the query.
    assert ask("job 10-40 / step 1 @12-20", at=25)["elapsed_s"] == 15


def test_nothing_is_known_before_the_first_job_start(ask: Ask) -> None:
    answer = ask("job 10-40 / step 1 @12-20", at=5)
    assert (answer["elapsed_s"], answer["goodput"], answer["seconds"]) == (0, None, {})
    assert (answer["last_step"], answer["max_productive_step"], answer["steps"]["executed"]) == (None, None, 0)


def test_a_phase_opened_before_the_job_owns_from_the_job_start_on(ask: Ask) -> None:
    assert ask("init 0-14 / job 10-20")["seconds"] == {"accelerator_init": 4, "other": 6}
    # So does a step, in later attempts as in the first.
    text = "step 0 @0-12 / job 10-20\nattempt 2\nstep 1 @25-40 / job 30-40"
    assert ask(text + SEEN)["seconds"] == {"productive": 12, "other": 8, "infrastructure_recovery": 10}


def test_a_phase_that_outlasts_the_job_owns_to_the_job_end(ask: Ask) -> None:
    answer = ask("job 0-20 / step 1 @10-18 / step 2 @18-26" + SEEN)
    assert answer["seconds"] == {"other": 10, "productive": 10}
    assert answer["steps"] == {"executed": 2, "kept": 2, "lost": 0}


# --- R2 death -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sign", ["heartbeat @26", "custom eval 26-", "load 3-26 async", "slices 4/4/4 @26", "save 21-26 async"]
)
def test_death_comes_at_the_last_sign_of_life(ask: Ask, sign: str) -> None:
    answer = ask(f"job 0- / step 1 @10-20 / {sign}\nattempt 2\njob 50-60")
    assert answer["elapsed_s"] == 60
    assert answer["seconds"]["infrastructure_recovery"] == 24
    assert answer["seconds"] == {"productive": 10, "infrastructure_recovery": 24, "other": 10 + 6 + 10}
    assert answer["disruption_reasons"] == {"crash": 1}


def test_the_device_gives_a_sign_of_life(ask: Ask) -> None:
    answer = ask("job 0- / step 1 @10-11 device 19 / step 2 @11-12 device 27" + SEEN + "\nattempt 2\njob 50-60")
    assert answer["seconds"] == {"productive": 17, "infrastructure_recovery": 23, "other": 20}


def test_the_gap_after_a_clean_end_is_recovery_too(ask: Ask) -> None:
    answer = ask("job 0-30 / step 1 @10-20\nattempt 2\njob 50-60")
    assert answer["seconds"] == {"productive": 10, "infrastructure_recovery": 20, "other": 30}
    assert answer["disruption_reasons"] == {"restart": 1}


def test_a_job_that_starts_again_in_the_same_process_is_a_new_life(ask: Ask) -> None:
    answer = ask("job 0-30 / step 1 @10-20 / job 50-60 / step 2 @50-60")
    assert answer["seconds"] == {"productive": 20, "infrastructure_recovery": 20, "other": 20}
    assert answer["disruption_reasons"] == {"restart": 1}


def test_a_job_inside_the_job_is_ignored(ask: Ask) -> None:
    answer = ask("job 0-60 / step 1 @10-20 / job 30-40")
    assert answer["seconds"] == {"productive": 10, "other": 50}
    assert answer["disruptions"] == 0


def test_a_start_before_the_last_sign_of_life_goes_on_from_there(ask: Ask) -> None:
    second = "job 35-80 / init 36-45 / step 2 @45-75 / step 3 @75-76 device 79"
    answer = ask(f"job 0- / step 1 @10-40 {SEEN}\nattempt 2\n{second} {SEEN}")
    assert answer["skewed_clocks"] is True
    # All times of the second attempt are 5 s later: no gap, and none of its time is missing.
    assert answer["elapsed_s"] == 85
    assert answer["seconds"] == {"other": 10 + 1 + 1, "productive": 30 + 30 + 4, "accelerator_init": 9}
    assert answer["disruption_list"][0]["recovery_s"] == 0
    assert ask("job 0- / step 1 @10-40\nattempt 2\njob 40-60")["skewed_clocks"] is False


def test_a_question_is_by_the_clock_of_the_latest_attempt(ask: Ask) -> None:
    text = f"job 0- / step 1 @10-40 {SEEN}\nattempt 2\njob 10- / step 2 @12-15 / step 3 @15- {SEEN}"
    answer = ask(text)
    assert answer["elapsed_s"] == 45 and answer["in_flight_step"] == 3
    answer = ask(f"{text} / heartbeat @19")
    assert answer["elapsed_s"] == 49 and answer["seconds"]["in_flight"] == 4
    # The next clock is right again, or not.
    assert ask(f"{text}\nattempt 3\njob 60-70")["elapsed_s"] == 70
    assert ask(f"{text}\nattempt 3\njob 1-11")["elapsed_s"] == 55


# --- R3 owner -------------------------------------------------------------------------------------------------------


def test_elastic_reinit_comes_before_elastic_wait_and_both_before_all(ask: Ask) -> None:
    answer = ask("""
        job 0-100 / step 1 @0-100
        wait slice_down 10-40 / custom eval 15-20 / reinit 30-50 / init 35-45
        wait scale_up 60-70 / wait sideways 80-90""")
    assert answer["seconds"] == {
        "productive": 10 + 10 + 10 + 10,
        "elastic_slice_down": 20 + 10,
        "elastic_reinitialization": 20,
        "elastic_scale_up": 10,
    }


def test_an_elastic_phase_comes_before_a_step_on_the_device(ask: Ask) -> None:
    answer = ask("job 0-20 / step 1 @0-1 device 20 / wait slice_down 5-10 / reinit 10-12")
    assert answer["seconds"] == {"productive": 13, "elastic_slice_down": 5, "elastic_reinitialization": 2}


def test_an_elastic_phase_of_another_thread_owns_nothing(ask: Ask) -> None:
    answer = ask("job 0-20 / step 1 @0-20 / wait slice_down 5-10 async / reinit 10-12 async")
    assert answer["seconds"] == {"productive": 20}


def test_a_step_on_the_device_hides_the_host(ask: Ask) -> None:
    answer = ask("job 0-30 / step 1 @0-1 device 10 / load 1-14 / step 2 @14-15 device 24 / custom eval 20-30")
    assert answer["seconds"] == {"productive": 10 + 10, "data_loading": 4, "custom": {"eval": 6}}


def test_the_innermost_phase_owns(ask: Ask) -> None:
    answer = ask("job 0-30 / custom eval 0-30 / load 5-20 sync / custom sync 8-12 / save 10-11 / restore 15-40")
    assert answer["seconds"] == {
        "custom": {"eval": 5, "sync": 3},
        "data_loading": 3 + 3,
        "checkpoint_save": 1,
        "checkpoint_restore": 15,
    }


def test_of_two_phases_that_start_together_the_longer_is_the_outer_one(ask: Ask) -> None:
    for text in ("init 0-30 / prep 0-10", "prep 0-10 / init 0-30"):
        assert ask(f"job 0-30 / {text}")["seconds"] == {"training_prep": 10, "accelerator_init": 20}
    # Those that end together as well: the later named is the inner one.
    assert ask("job 0-30 / init 0-30 / prep 0-30")["seconds"] == {"training_prep": 30}
    assert ask("job 0- / init 0-20 / prep 0-30", at=10)["seconds"] == {"training_prep": 10}


def test_steps_that_start_together_follow_each_other(ask: Ask) -> None:
    """The clock may be too coarse for them; a step without length is no rollback's victim."""
    for text in ("step 0 @10-10 / step 1 @10-20", "step 1 @10-20 / step 0 @10-10"):
        answer = ask(f"job 0-30 / {text}")
        assert answer["steps"] == {"executed": 2, "kept": 2, "lost": 0} and answer["disruptions"] == 0


def test_of_jobs_that_start_together_the_longer_counts(ask: Ask) -> None:
    for text in ("job 0-0 / job 0-30", "job 0-30 / job 0-0"):
        assert ask(text)["seconds"] == {"other": 30}


def test_of_slice_counts_at_the_same_time_the_last_one_counts(ask: Ask) -> None:
    answer = ask("job 0-30 / slices 0/1/1 @10 / slices 0/0/1 @10")
    assert answer["slice_efficiency"] == {"stepping": 0.0, "available": 0.0}


def test_a_phase_in_progress_owns_its_time_already(ask: Ask) -> None:
    assert ask("job 0-90 / prep 10-60 / step 1 @60-90", at=40)["seconds"] == {"other": 10, "training_prep": 30}


def test_the_step_owns_what_no_phase_inside_owns(ask: Ask) -> None:
    answer = ask("job 0-30 / step 1 @5-25 / custom eval 10-13 / save 1 @20-27")
    assert answer["seconds"] == {"other": 5 + 3, "productive": 12, "custom": {"eval": 3}, "checkpoint_save": 7}


def test_of_two_open_steps_the_latest_started_owns(ask: Ask) -> None:
    answer = ask("job 0-40 / step 1 @0-20 / step 2 @10-40", at=30)
    assert answer["seconds"] == {"productive": 10, "in_flight": 20}


def test_a_reversed_end_counts_as_no_time(ask: Ask) -> None:
    answer = ask("job 0-30 / step 1 @8-5 / custom eval 20-10 / step 2 @10-30" + SEEN)
    assert answer["seconds"] == {"other": 10, "productive": 20}
    assert answer["steps"] == {"executed": 2, "kept": 2, "lost": 0}


# --- R4 fate --------------------------------------------------------------------------------------------------------


def test_a_restart_further_back_wastes_what_is_repeated(ask: Ask) -> None:
    answer = ask("""
        job 0- / steps 0..4 @10 every 2 / step 5 @20- / heartbeat @21
        attempt 2
        job 30-60 / steps 3..7 @40 every 2""")
    # Steps 3 and 4 (4 s) are repeated, and the 1 s of step 5 was never finished.
    assert answer["seconds"] == {
        "other": 10 + 10 + 10,
        "productive": 6 + 10,
        "wasted_progress": 4 + 1,
        "infrastructure_recovery": 9,
    }
    assert answer["steps"] == {"executed": 10, "kept": 8, "lost": 3}
    assert answer["max_productive_step"] == 7


def test_only_the_seconds_of_the_step_change_hands(ask: Ask) -> None:
    answer = ask("job 0-40 / steps 0..1 @0 every 10 / custom eval 12-15 / save 15-16 / steps 1..2 @20 every 10" + SEEN)
    assert answer["seconds"] == {
        "productive": 10 + 20,
        "wasted_progress": 6,
        "custom": {"eval": 3},
        "checkpoint_save": 1,
    }


def test_a_rollback_in_the_process_wastes_what_is_repeated(ask: Ask) -> None:
    answer = ask("job 0-18 / steps 0..5 @0 every 2 / steps 4..6 @12 every 2")
    assert answer["seconds"] == {"productive": 14, "wasted_progress": 4}
    assert answer["disruption_reasons"] == {"rollback": 1}
    assert answer["max_productive_step"] == 6


def test_an_execution_still_open_when_its_step_starts_again_is_lost(ask: Ask) -> None:
    answer = ask("job 0-30 / step 1 @0-10 / step 2 @10-25 / step 2 @20-30")
    assert answer["seconds"] == {"productive": 20, "wasted_progress": 10}
    assert answer["steps"] == {"executed": 3, "kept": 2, "lost": 1}
    assert answer["disruptions"] == 0  # nothing that was kept is gone


def test_a_step_in_flight_now_is_in_flight(ask: Ask) -> None:
    answer = ask("job 0- / step 7 @10-20 / step 8 @20-", at=3620)
    assert answer["seconds"] == {"other": 10, "productive": 10, "in_flight": 3600}
    assert answer["in_flight_step"] == 8
    assert answer["steps"] == {"executed": 1, "kept": 1, "lost": 0}


def test_a_step_that_never_ends_is_wasted_once_the_job_has_ended(ask: Ask) -> None:
    answer = ask("job 0-30 / step 7 @10-20 / step 8 @20-")
    assert answer["seconds"] == {"other": 10, "productive": 10, "wasted_progress": 10}
    assert answer["in_flight_step"] is None
    assert answer["steps"] == {"executed": 1, "kept": 1, "lost": 1}


def test_step_numbers_may_skip_and_start_anywhere(ask: Ask) -> None:
    answer = ask("job 0-50 / step 100 @0-10 / step 110 @10-20 / step 120 @20-30 / step 105 @30-40 / step 130 @40-50")
    assert answer["seconds"] == {"productive": 30, "wasted_progress": 20}
    assert answer["steps"] == {"executed": 5, "kept": 3, "lost": 2}
    assert (answer["max_productive_step"], answer["last_step"]) == (130, 130)


# --- R4 after a restore ---------------------------------------------------------------------------------------------

MICRO = "job 0-90 / steps 0..9 @0 every 5 / save 2 @39-40"  # of step 7, in whose body it begins


def ends(text: str) -> str:
    """The first attempt, killed at 50, and a second one."""
    return text.replace("job 0-90", "job 0-") + SEEN + " / heartbeat @50\nattempt 2\njob 60-200 / " + SEEN[3:] + " / "


def lost(answer: dict[str, Any]) -> tuple[int, int, int, int]:
    return *(answer["steps"][fate] for fate in ("kept", "lost")), answer["last_step"], answer["last_step_given"]


def test_a_checkpoint_stands_for_what_was_done_when_its_save_began(ask: Ask) -> None:
    assert ask(MICRO, at=41)["at_risk_s"] == 0
    assert ask(MICRO, at=50)["at_risk_s"] == 10
    answer = ask(ends(MICRO) + "restore 2 60-61 / steps 8..9 @61 every 5")
    assert lost(answer) == (10, 2, 9, 9)


@pytest.mark.parametrize("given", [0, 8, 50], ids=["begins anew", "as before", "far on"])
def test_the_step_after_a_restore_is_the_next_whatever_its_loop_calls_it(ask: Ask, given: int) -> None:
    answer = ask(ends(MICRO) + f"restore 2 60-61 / steps {given}..{given + 4} @61 every 5")
    assert lost(answer) == (13, 2, 12, given + 4)


@pytest.mark.parametrize("order", ["restore 2 60-61 / restore {} 61-62", "restore {} 60-61 / restore 2 61-62"])
@pytest.mark.parametrize("other", [5, 100_000])
def test_a_checkpoint_of_this_run_takes_precedence(ask: Ask, order: str, other: int) -> None:
    assert lost(ask(ends(MICRO) + order.format(other) + " / steps 8..9 @62 every 5")) == (10, 2, 9, 9)


def test_a_checkpoint_that_the_run_did_not_save_goes_back_by_number_or_not_at_all(ask: Ask) -> None:
    saved_unseen = ends("job 0-90 / steps 0..9 @0 every 5")
    assert lost(ask(saved_unseen + "restore 6 60-61 / steps 0..2 @61 every 5")) == (10, 3, 9, 2)
    teacher = "job 0-200 / steps 0..9 @0 every 5 / restore 100000 50-51 / steps 10..14 @51 every 5"
    assert lost(ask(teacher)) == (15, 0, 14, 14)
    assert ask(teacher)["disruptions"] == 0


def test_a_restore_in_a_run_without_steps_leaves_numbers_as_they_are(ask: Ask) -> None:
    assert lost(ask("job 0-200 / restore 100000 0-1 / steps 100001..100005 @1 every 5")) == (5, 0, 100_005, 100_005)
    assert lost(ask("job 0-200 / restore 100000 0-1 / steps 0..4 @1 every 5")) == (5, 0, 4, 4)


def test_a_number_after_that_step_is_believed(ask: Ask) -> None:
    """No step is lost that its loop does not do again."""
    assert lost(ask(ends(MICRO) + "restore 2 60-61 / steps 9..11 @61 every 5")) == (12, 1, 11, 11)


def test_a_failed_restore_moves_nothing(ask: Ask) -> None:
    rows = story(ends(MICRO) + "steps 0..9 @62 every 5")
    rows.append({"kind": "checkpoint_restore", "start": 60, "end": 61, "step": 2, "attempt": 2, "completed": False})
    for answer in (replay(rows), account(rows)):
        assert lost(answer) == (10, 10, 9, 9)


def test_a_save_at_the_head_of_a_body_does_not_hold_its_step(ask: Ask) -> None:
    head = "job 0-90 / steps 0..9 @0 every 5 / save 400 @36-37"
    assert lost(ask(ends(head) + "restore 400 60-61 / steps 7..9 @61 every 5")) == (10, 3, 9, 9)
    # By its own number it holds the step, unless the loop that is resumed does it again.
    head = "job 0-90 / steps 0..9 @0 every 5 / save 7 @35-36"
    assert lost(ask(ends(head) + "restore 7 60-61 / steps 7..9 @61 every 5")) == (10, 3, 9, 9)
    assert lost(ask(ends(head) + "restore 7 60-61 / steps 8..9 @61 every 5")) == (10, 2, 9, 9)


def test_what_an_evaluation_restores_moves_nothing(ask: Ask) -> None:
    train = "job 0-90 / steps 0..4 @0 every 5 / save 2 @25-26 / custom eval @30-40 / restore 2 32-35"
    train += " / steps {0}..{1} @40 every 5"
    assert lost(ask(train.format(5, 9))) == (10, 0, 9, 9)
    assert lost(ask(train.format(0, 4))) == (5, 5, 4, 4)  # unless the loop says so
    before = "job 0-90 / custom setup @0-5 / restore 100 1-2 / steps 101..104 @5 every 5"
    assert lost(ask(before)) == (4, 0, 104, 104)


# --- R4 batches that a loop skips -----------------------------------------------------------------------------------

WALK = ends(MICRO) + "restore 2 60-61 / steps {0}..{1} @61 every 1 / steps {2}..{3} @69 every 5"


@pytest.mark.parametrize("first", [0, 8], ids=["numbered from 0", "numbered on"])
def test_bodies_without_work_after_a_restore_are_no_steps(ask: Ask, first: int) -> None:
    answer = ask(WALK.format(first, first + 7, first + 8, first + 11))
    assert lost(answer) == (12, 2, 11, first + 11)
    assert (answer["skipped_batches"], answer["seconds"]["data_loading"]) == (8, 8)
    assert answer["disruption_list"][0]["to_step"] == 8


def test_nothing_goes_back_while_a_loop_skips(ask: Ask) -> None:
    text = ends(MICRO) + "restore 2 60-61 / steps 0..5 @61 every 1 / steps 8..11 @69 every 5"
    answer = ask(text, at=66.5)
    assert (answer["steps"]["kept"], answer["steps"]["lost"], answer["in_flight_step"]) == (10, 0, 5)
    assert answer["seconds"]["in_flight"] == 0.5
    assert ask(text, at=71)["steps"]["kept"] == 10, "it may yet be a batch that is skipped"
    assert ask(text, at=72)["steps"] == {"executed": 10, "kept": 8, "lost": 2}, "it works"


@pytest.mark.parametrize("inside", ["custom eval @67.5", "save @67.5", "part @67.5"])
def test_a_phase_shows_that_a_body_works(ask: Ask, inside: str) -> None:
    answer = ask(WALK.format(0, 7, 8, 11) + " / " + inside)
    assert (answer["skipped_batches"], answer["disruption_list"][0]["to_step"]) == (6, 8)
    assert ask(WALK.format(0, 7, 8, 11) + " / load @67.5 sync")["skipped_batches"] == 8


def test_no_more_bodies_are_skipped_than_the_checkpoint_stands_for(ask: Ask) -> None:
    text = ends(MICRO) + "restore 2 60-61 / steps 0..19 @61 every 1"
    assert (ask(text)["skipped_batches"], ask(text)["steps"]["kept"]) == (8, 20)


def given(text: str, first: int) -> list[dict[str, Any]]:
    """The rows of a story whose loop is given the number of step `first` after the restore."""
    rows = story(text)
    for row in rows:
        if row["kind"] == "step" and row["step"] == first and row["start"] > 60:
            row["numbered"] = True
    return rows


@pytest.mark.parametrize("answer", [replay, account], ids=["ledger", "oracle"])
@pytest.mark.parametrize(
    ("restored", "first", "skipped"),
    [
        ("restore 2", 8, 0),  # after the last step that was done when the checkpoint was saved
        ("restore 7", 8, 0),  # saved in the body of step 7, whose number it has
        ("restore 400", 401, 0),  # of another run
        ("restore 7", 5, 1),  # somewhere else: of an epoch's first batch, perhaps
        ("restore", 8, 0),  # it is not known where to, but it is not as short as a batch that is skipped
        ("restore", 0, 1),
    ],
)
def test_a_short_first_step_whose_number_is_given(
    answer: Callable[[list[dict[str, Any]]], dict[str, Any]], restored: str, first: int, skipped: int
) -> None:
    head = ends(MICRO.replace("save 2", f"save {2 if restored == 'restore 2' else 7}"))
    text = f"{head}{restored} 60-61 / step {first} @61-62 / steps {first + 1}..{first + 3} @62 every 5"
    assert answer(given(text, first))["skipped_batches"] == skipped


@pytest.mark.parametrize("answer", [replay, account], ids=["ledger", "oracle"])
def test_batches_before_a_given_number_are_skipped_though_the_checkpoint_is_not_known(
    answer: Callable[[list[dict[str, Any]]], dict[str, Any]],
) -> None:
    text = f"{ends(MICRO)}restore 60-61 / steps 5..7 @61 every 0.1 / steps 8..11 @62 every 5"
    assert answer(given(text, 5))["skipped_batches"] == 3


# The loop skips batches; from one the busy machine takes the processor away for longer than half a step.
DELAYED = ends(MICRO) + "restore 2 60-61 / steps 0..3 @61 every 0.1 / step 4 @61.4-64.4 / "


def test_a_skipped_batch_may_take_long_on_a_busy_machine(ask: Ask) -> None:
    text = DELAYED + "steps 5..7 @64.4 every 0.1 / steps 8..11 @64.7 every 5"
    answer = ask(text)
    assert lost(answer) == (12, 2, 11, 11)
    assert answer["skipped_batches"] == 8
    assert answer["seconds"]["data_loading"] == pytest.approx(3.7)
    assert ask(text, at=63)["in_flight_step"] == 4, "it is decided by its time so far"
    assert ask(text, at=64.45)["steps"] == {"executed": 11, "kept": 9, "lost": 2}, "nothing short follows so far"
    assert ask(text, at=64.5)["skipped_batches"] == 6


@pytest.mark.parametrize(
    ("follows", "skipped"),
    [
        ("steps 8..11 @64.4 every 3", 4),
        ("steps 5..7 @64.4 every 0.6 / steps 8..11 @67 every 5", 4),  # too long for a batch that is skipped
        ("step 5 @64.4-64.5 / part @64.45", 4),
        ("custom eval @64.4-65 / step 5 @65-65.1", 4),
        ("", 4),  # nothing follows
    ],
)
def test_a_long_body_is_a_step_unless_a_short_one_follows(ask: Ask, follows: str, skipped: int) -> None:
    assert ask((DELAYED + follows).rstrip(" /"))["skipped_batches"] == skipped


def test_a_body_that_was_left_early_says_nothing_about_the_one_before() -> None:
    rows = story(DELAYED + "step 5 @64.4-64.5")
    rows[-1]["completed"] = False
    for answer in (replay(rows), account(rows)):
        assert (answer["skipped_batches"], answer["steps"]) == (4, {"executed": 11, "kept": 9, "lost": 3})


def test_the_first_body_may_be_the_one_that_takes_long(ask: Ask) -> None:
    text = ends(MICRO) + "restore 2 60-61 / step 0 @61-64 / steps 1..7 @64 every 0.1 / steps 8..11 @65 every 5"
    assert (ask(text)["skipped_batches"], lost(ask(text))) == (8, (12, 2, 11, 11))


def test_only_what_follows_a_restore_is_skipped(ask: Ask) -> None:
    text = ends(MICRO) + "steps 0..7 @61 every 1 / steps 8..11 @69 every 5"
    assert (ask(text)["skipped_batches"], ask(text)["steps"]["lost"]) == (0, 10)


def test_without_earlier_steps_bodies_count_with_a_note() -> None:
    text = "job 0-200 / restore 7 0-1 / steps 0..7 @1 every 0.1 / steps 8..11 @2 every 5"
    answer = replay(story(text))
    assert (answer["skipped_batches"], answer["doubtful_steps"], answer["steps"]["kept"]) == (0, 8, 12)
    assert replay(story(text.replace("restore 7 0-1 / ", "")))["doubtful_steps"] == 0
    assert replay(story("job 0-99 / restore 7 0-1 / steps 0..11 @2 every 5"))["doubtful_steps"] == 0


# --- R5 start-up ----------------------------------------------------------------------------------------------------


def test_compilations_own_their_time_exactly(ask: Ask) -> None:
    answer = ask("""
        job 0-60 / step 1 @0-30 / compile train 2-25 / step 2 @30-35
        step 3 @35-50 / compile train 36-46 / step 4 @50-60""")
    assert answer["seconds"] == {"program_startup": 23 + 10, "productive": 7 + 5 + 5 + 10}
    assert answer["recompilations"] == 1


def test_the_excess_of_the_first_step_is_startup(ask: Ask) -> None:
    answer = ask("job 0-70 / step 0 @0-40 / step 1 @40-48 / step 2 @48-58 / step 3 @58-70")
    # Of 8, 10 and 12 s the middle is 10.
    assert answer["seconds"] == {"program_startup": 30, "productive": 40}
    # Of an even number, the mean of the two in the middle.
    assert ask("job 0-58 / step 0 @0-40 / step 1 @40-48 / step 2 @48-58")["seconds"]["program_startup"] == 31


def test_a_first_step_that_is_no_longer_has_no_excess(ask: Ask) -> None:
    assert ask("job 0-30 / step 0 @0-5 / step 1 @5-15 / step 2 @15-30")["seconds"] == {"productive": 30}


def test_a_compilation_of_another_thread_ends_the_guessing_too(ask: Ask) -> None:
    answer = ask("job 0-60 / step 0 @0-40 / compile train 0-30 async / steps 1..2 @40 every 10")
    assert answer["seconds"] == {"productive": 60}
    # It has not been seen before it has started.
    text = "job 0-60 / step 0 @0-40 / steps 1..2 @40 every 5 / compile train 55-60"
    assert ask(text, at=54)["seconds"] == {"program_startup": 35, "productive": 5 + 10, "other": 4}
    assert ask(text)["seconds"] == {"productive": 50, "program_startup": 5, "other": 5}


def test_each_start_and_each_rollback_begins_a_stretch(ask: Ask) -> None:
    answer = ask("""
        job 0-60 / step 0 @0-20 / steps 1..3 @20 every 4 / step 2 @32-48 / steps 3..5 @48 every 4
        attempt 2
        job 60-100 / step 6 @60-90 / steps 7..8 @90 every 5""")
    # 16 s of step 0, 12 s of the second step 2, 25 s of step 6.
    assert answer["seconds"] == {
        "program_startup": 16 + 12 + 25,
        "productive": 4 + 4 + 4 + 12 + 5 + 10,
        "wasted_progress": 8,
    }


def test_a_first_step_that_compiles_is_startup_beyond_ten_times_the_usual_time(ask: Ask) -> None:
    text = "job 0-44 / step 0 @0-40 / compile train 2-10 / steps 1..4 @40 every 1"
    assert ask(text)["seconds"] == {"program_startup": 8 + 22, "productive": 10 + 4}
    assert ask(text, at=40)["seconds"] == {"program_startup": 8, "productive": 32}, "nothing to compare it with yet"
    # It may take ten times as long as the others, and a later one as long as it likes.
    text = """
        job 0-62 / step 0 @0-18 / compile train 2-10 / steps 1..3 @18 every 1
        step 4 @21-62 / compile train 30-40"""
    assert ask(text)["seconds"] == {"program_startup": 8 + 10, "productive": 10 + 3 + 31}
    # The first step of each attempt and of each rollback, also if it is lost.
    text = """
        job 0- / step 0 @0-30 / compile a 1-5 / steps 1..3 @30 every 1
        step 0 @33-60 / compile a 34-41 / steps 1..2 @60 every 1 / heartbeat @62
        attempt 2
        job 62-92 / step 2 @62-90 / compile a 70-75 / steps 3..4 @90 every 1"""
    assert ask(text)["seconds"] == {
        "program_startup": 4 + 16 + 7 + 10 + 5 + 13,
        "productive": 10 + 1 + 10 + 2,
        "wasted_progress": 10 + 3 + 1,
    }


def test_lost_steps_serve_where_no_kept_step_does(ask: Ask) -> None:
    answer = ask("""
        job 0- / step 0 @0-20 / steps 1..2 @20 every 4
        attempt 2
        job 28-60 / step 1 @28-38 / steps 2..3 @38 every 6""")
    # The kept first step is measured by the lost 1 and 2 of its own segment, not by the 6 s of the second attempt.
    assert answer["seconds"] == {
        "program_startup": 16 + 4,
        "productive": 4 + 6 + 12,
        "wasted_progress": 8,
        "other": 10,
    }


def test_the_other_steps_of_the_run_serve_where_the_stretch_has_none(ask: Ask) -> None:
    answer = ask("""
        job 0- / step 0 @0-20
        attempt 2
        job 20-50 / step 1 @20-30 / steps 2..3 @30 every 4""")
    # Net 10, 4 and 4 s: the middle is 4.
    assert answer["seconds"] == {"program_startup": 16 + 6, "productive": 4 + 4 + 8, "other": 12}


def test_a_step_alone_is_not_taken_apart(ask: Ask) -> None:
    assert ask("job 0-20 / step 0 @0-20")["seconds"] == {"productive": 20}


def test_a_lost_first_step_is_taken_apart_too(ask: Ask) -> None:
    answer = ask("""
        job 0- / step 0 @0-20 / steps 1..2 @20 every 4
        attempt 2
        job 28-60 / step 0 @28-48 / steps 1..3 @48 every 4""")
    assert answer["seconds"] == {"program_startup": 32, "wasted_progress": 12, "productive": 16}


def test_startup_is_taken_from_the_front_of_the_step(ask: Ask) -> None:
    text = "job 0-60 / step 0 @0-40 / custom eval 10-15 / steps 1..4 @40 every 5"
    windows = ask(text, windows=[(0, 20), (20, 40)])["windows"]
    assert windows[0]["seconds"] == {"program_startup": 15, "custom": {"eval": 5}}
    assert windows[1]["seconds"] == {"program_startup": 15, "productive": 5}


# --- R6 disruptions -------------------------------------------------------------------------------------------------


def test_each_attempt_and_each_rollback_is_a_disruption(ask: Ask) -> None:
    answer = ask("""
        job 0-24 / steps 0..5 @0 every 4
        attempt 2
        job 30- / steps 6..7 @30 every 4 / step 8 @38- / heartbeat @40
        attempt 4
        job 50-70 / steps 7..8 @50 every 4 / steps 8..9 @58 every 4""")
    assert answer["disruptions"] == 3
    assert answer["attempts"] == 3
    assert answer["disruption_reasons"] == {"restart": 1, "crash": 1, "rollback": 1}
    unset = {"first_reason", "said_by", "note", "ended_by", "process", "process_known"}
    unset |= {"error_type", "error_message"}
    listed = [{name: one[name] for name in one.keys() - unset} for one in answer["disruption_list"]]
    assert listed == [
        {"attempt": 2, "reason": "restart", "recovery_s": 6, "wasted_s": 0, "from_step": 5, "to_step": 6}
        | {"time": 30, "died_at": 24, "startup_s": 0, "restored_s": 0, "cost_s": 6}
        | {"kept_step": 5, "first_step_s": 4, "regained_s": 4},
        {"attempt": 4, "reason": "crash", "recovery_s": 10, "wasted_s": 6, "from_step": 8, "to_step": 7}
        | {"time": 50, "died_at": 40, "startup_s": 0, "restored_s": 0, "cost_s": 16}
        | {"kept_step": 7, "first_step_s": 4, "regained_s": 4},
        {"attempt": None, "reason": "rollback", "recovery_s": 0, "wasted_s": 4, "from_step": 8, "to_step": 8}
        | {"time": 58, "died_at": None, "startup_s": None, "restored_s": None, "cost_s": 4}
        | {"kept_step": 8, "first_step_s": None, "regained_s": 4},
    ]


def test_the_cost_of_a_restart_is_listed_by_kind(ask: Ask) -> None:
    """Start-up is 3 s of phases and 5 s of the first step, which took 9 s where the others take 4 (rule R5)."""
    [one] = ask("""
        job 0-20 / steps 0..3 @0 every 4 / step 4 @16- / heartbeat @20
        attempt 2
        job 26-60 / init 26-29 / restore 3 @29-31 / step 4 @31-40 / steps 5..8 @40 every 4""")["disruption_list"]
    assert (one["recovery_s"], one["wasted_s"], one["startup_s"], one["restored_s"], one["cost_s"]) == (6, 4, 8, 2, 20)


def test_what_comes_after_the_first_step_is_no_cost_of_the_restart(ask: Ask) -> None:
    [one] = ask("""
        job 0-8 / steps 0..1 @0 every 4
        attempt 2
        job 10-40 / step 2 @10-14 / prep 14-20 / restore 2 @20-22 / steps 3..5 @22 every 4""")["disruption_list"]
    assert (one["startup_s"], one["restored_s"], one["cost_s"]) == (0, 0, 2)


def test_resuming_exactly_where_it_died_is_a_disruption(ask: Ask) -> None:
    answer = ask("job 0- / steps 0..1 @0 every 5\nattempt 2\njob 10-20 / steps 2..3 @10 every 5")
    assert answer["seconds"] == {"productive": 20}
    assert answer["disruption_reasons"] == {"crash": 1}


def regains(answer: dict[str, Any]) -> list[tuple[int | None, float | None, float | None]]:
    return [(one["kept_step"], one["first_step_s"], one["regained_s"]) for one in answer["disruption_list"]]


def test_the_time_to_the_first_step_is_from_the_start_of_the_latest_job_to_the_end_of_the_step(ask: Ask) -> None:
    text = "job 5- / init 5-8 / steps 0..1 @10 every 5 / heartbeat @30\nattempt 2\njob 50-80 / steps 2..3 @60 every 7"
    assert ask(text, at=14)["first_step_s"] is None
    assert ask(text, at=15)["first_step_s"] == ask(text, at=40)["first_step_s"] == 10
    assert ask(text, at=66)["first_step_s"] is None, "not yet that of the new job"
    assert ask(text)["first_step_s"] == 17


def test_the_first_step_is_over_even_if_it_is_lost_later(ask: Ask) -> None:
    answer = ask("job 0-40 / steps 3..4 @10 every 5 / steps 2..4 @20 every 5")
    assert answer["first_step_s"] == 15


def test_what_was_kept_is_regained_when_its_highest_step_is_kept_again(ask: Ask) -> None:
    text = (
        "job 0- / steps 0..14 @0 every 2 / step 15 @30- / heartbeat @31\nattempt 2\njob 40- / steps 10..20 @45 every 3"
    )
    assert regains(ask(text, at=44)) == [(14, None, None)]
    assert regains(ask(text, at=48)) == [(14, 8, None)]
    assert regains(ask(text, at=59)) == [(14, 8, None)]
    assert regains(ask(text, at=60)) == regains(ask(text)) == [(14, 8, 20)], "step 15 had not been kept"


def test_a_job_that_ended_before_has_not_regained(ask: Ask) -> None:
    answer = ask("""
        job 0- / steps 0..9 @0 every 2
        attempt 2
        job 30- / steps 5..7 @30 every 2
        attempt 3
        job 50-90 / steps 5..12 @52 every 3""")
    assert regains(answer) == [(9, 2, None), (7, 5, 11)], "step 7 is what attempt 2 had kept"


def test_where_nothing_was_kept_there_is_nothing_to_regain(ask: Ask) -> None:
    answer = ask("job 0- / step 0 @5- / heartbeat @9\nattempt 2\njob 20-40 / steps 0..3 @25 every 2")
    assert regains(answer) == [(None, 7, None)]


def test_a_rollback_within_a_rollback_is_regained_first(ask: Ask) -> None:
    answer = ask("job 0-99 / steps 0..9 @0 every 2 / steps 5..6 @20 every 2 / steps 3..12 @24 every 2")
    assert regains(answer) == [(9, None, 18), (6, None, 8)]


def test_a_higher_step_regains_as_well(ask: Ask) -> None:
    answer = ask(
        "job 0- / steps 0..9 @0 every 2\nattempt 2\njob 30-90 / steps 5..6 @32 every 2 / steps 20..21 @36 every 5"
    )
    assert regains(answer) == [(9, 4, 11)]


def test_a_step_that_is_lost_regains_nothing(ask: Ask) -> None:
    answer = ask("job 0-60 / steps 0..4 @0 every 2 / step 5 @10-40 / step 2 @12-14 / steps 3..6 @14 every 4")
    assert regains(answer) == [(4, None, 10)]


def test_what_ends_on_the_device_regains_then(ask: Ask) -> None:
    text = "job 0- / steps 0..4 @0 every 2\nattempt 2\njob 20- / step 4 @22-23 device 30 / step 5 @24-25 device 40"
    assert regains(ask(text, at=29)) == [(4, None, None)]
    assert regains(ask(text, at=30)) == [(4, 10, 10)]


def test_a_step_that_a_former_job_left_on_the_device_is_not_the_first_of_the_next(ask: Ask) -> None:
    answer = ask("job 0-10 / step 0 @0-4 / step 1 @5-6 device 30 / job 20-60 / step 2 @40-45 / step 3 @45-50")
    assert answer["steps"]["kept"] == 4
    assert regains(answer) == [(0, 25, 25)]


# --- R7 exclusions --------------------------------------------------------------------------------------------------


def test_an_exclusion_is_cut_out_of_everything(ask: Ask) -> None:
    text = "job 0-40 / prep 0-10 / steps 0..5 @10 every 5"
    answer = ask(text, exclusions=[(5, 12), (10, 17), (39, 80)])
    assert answer["excluded_s"] == 13
    assert answer["elapsed_s"] == 27
    assert answer["seconds"] == {"training_prep": 5, "productive": 22}
    assert answer["goodput"] == 22 / 27
    assert answer["steps"]["kept"] == 6
    # Net step times know nothing of it.
    assert answer["ideal_step_time_s"] == 5


def test_an_exclusion_can_be_an_event(ask: Ask) -> None:
    answer = ask("job 0-40 / prep 0-10 / steps 0..5 @10 every 5 / exclude 5-12")
    assert answer["seconds"] == {"training_prep": 5, "productive": 28}
    assert answer["excluded_s"] == 7


def test_startup_is_measured_before_it_is_excluded(ask: Ask) -> None:
    answer = ask("job 0-60 / step 0 @0-40 / steps 1..4 @40 every 5", exclusions=[(0, 30)])
    assert answer["seconds"] == {"program_startup": 5, "productive": 25}


# --- R8 windows -----------------------------------------------------------------------------------------------------


def test_a_window_cuts_the_partition_to_its_part_of_the_life(ask: Ask) -> None:
    text = "job 10-60 / prep 10-20 / steps 0..3 @20 every 5 / step 4 @50-60"
    windows = ask(text, windows=[(0, 22), (30, 55), (58, 99), (70, 80)], exclusions=[(15, 17)])["windows"]
    assert [(w["start"], w["end"]) for w in windows] == [(0, 22), (30, 55), (58, 99), (70, 80)]
    assert [w["elapsed_s"] for w in windows] == [10, 25, 2, 0]
    assert [w["seconds"] for w in windows] == [
        {"training_prep": 8, "productive": 2},
        {"productive": 10 + 5, "other": 10},
        {"productive": 2},
        {},
    ]
    assert [w["goodput"] for w in windows] == [0.2, 0.6, 1.0, None]
    assert [w["max_productive_step"] for w in windows] == [0, 4, 4, None]


def test_a_hang_is_visible_in_the_window(ask: Ask) -> None:
    answer = ask("job 0- / steps 0..4 @0 every 10 / step 5 @50-", at=4000, windows=[(400, 4000)])
    assert answer["windows"][0]["seconds"] == {"in_flight": 3600}
    assert answer["windows"][0]["goodput"] == 0


def test_recovery_is_cut_by_a_window_too(ask: Ask) -> None:
    answer = ask("job 0- / step 0 @0-10\nattempt 2\njob 50-60", windows=[(5, 40)])
    assert answer["windows"][0]["seconds"] == {"productive": 5, "infrastructure_recovery": 30}


def test_a_reversed_window_is_a_mistake(ask: Ask) -> None:
    with pytest.raises(ValueError):
        ask("job 0-10", windows=[(5, 4)])


# --- R9 duplicates and strangers ------------------------------------------------------------------------------------


def test_an_event_delivered_twice_counts_once(ask: Ask) -> None:
    text = "job 0-30 / steps 0..2 @0 every 10 / load 3-5 async / compile train 6-7 / step 3 @30-30"
    assert ask(f"{text} / {text} / {text}") == ask(text)


def test_two_phases_are_not_the_same_for_being_open_both(ask: Ask) -> None:
    text = "job 0- / load 10-13 sync / compile train 10-15 / load 10-19 sync"
    assert ask(text, at=12)["seconds"] == {"other": 10, "data_loading": 2}


def test_a_load_that_says_that_it_blocks_is_another_than_one_that_does_not_say(ask: Ask) -> None:
    answer = ask("job 0-30 / step 0 @0-30 / load 5-9 sync / load 5-9")
    assert answer["seconds"]["data_loading"] == 4 and answer["overlapped_data_loading_s"] == 4


def test_other_processes_never_enter(ask: Ask) -> None:
    text = "job 0-30 / steps 0..2 @0 every 10"
    strangers = "job 0-90 process 1 / step 0 @5-20 process 1 / compile train 0-90 process 2 / heartbeat @99 process 3"
    assert ask(f"{strangers} / {text}") == ask(text)


# --- the device clock -----------------------------------------------------------------------------------------------


def test_the_device_works_off_what_the_host_dispatched(ask: Ask) -> None:
    # The host runs three steps ahead; the device needs 10 s for each and idles 4 s for the load before the last.
    answer = ask("""
        job 0-50 / load 0-2
        step 0 @2-3 device 12 / step 1 @3-4 device 22 / step 2 @4-5 device 32 / load 5-36
        step 3 @36-37 device 46""")
    assert answer["seconds"] == {"data_loading": 2 + 4, "productive": 40, "other": 4}
    assert answer["step_time"] == {"count": 4, "mean_s": 10, "min_s": 10, "median_s": 10, "p90_s": 10, "max_s": 10}


def test_device_ends_are_made_monotone(ask: Ask) -> None:
    answer = ask("job 0-20 / step 0 @0-1 device 15 / step 1 @1-2 device 9 / load 2-20" + SEEN)
    assert answer["seconds"] == {"productive": 15, "data_loading": 5}


def test_a_step_on_the_device_at_the_query_is_in_flight(ask: Ask) -> None:
    text = "job 0-30 / step 0 @0-1 device 10 / step 1 @1-2 device 20 / load 2-30"
    answer = ask(text, at=15)
    assert answer["seconds"] == {"productive": 10, "in_flight": 5}
    assert answer["steps"] == {"executed": 1, "kept": 1, "lost": 0}
    assert ask(text)["seconds"] == {"productive": 20, "data_loading": 10}


def test_device_time_is_cut_at_the_job_end(ask: Ask) -> None:
    answer = ask("job 0-15 / step 0 @0-1 device 10 / step 1 @1-2 device 20" + SEEN)
    assert answer["seconds"] == {"productive": 15}
    assert answer["steps"]["kept"] == 2


# --- derived figures ------------------------------------------------------------------------------------------------


def test_at_risk_is_what_no_checkpoint_holds(ask: Ask) -> None:
    text = "job 0-40 / steps 0..3 @0 every 5 / save 20-22 / steps 4..5 @22 every 5 / step 6 @32-"
    assert ask(text, at=20)["at_risk_s"] == 20
    assert ask(text, at=21)["at_risk_s"] == 20  # not saved before the save has ended
    assert ask(text, at=22)["at_risk_s"] == 0
    assert ask(text, at=35)["at_risk_s"] == 10  # what is in flight is not productive


def test_an_asynchronous_save_holds_what_was_kept_when_it_started(ask: Ask) -> None:
    text = "job 0-40 / steps 0..7 @0 every 5 / save 20-31 async"
    assert ask(text, at=30)["at_risk_s"] == 30
    assert ask(text, at=31)["at_risk_s"] == 10
    assert ask(text, at=31)["seconds"] == {"productive": 30, "in_flight": 1}


def test_a_save_holds_the_steps_that_are_done_whatever_its_label(ask: Ask) -> None:
    assert ask("job 0-40 / steps 0..5 @0 every 5 / save 3 @30-32")["at_risk_s"] == 0
    assert ask("job 0-40 / steps 0..5 @0 every 5 / save 9 @30-32")["at_risk_s"] == 0


def test_a_save_of_the_step_in_progress_holds_it(ask: Ask) -> None:
    """As in a loop whose body saves: the checkpoint of a step has its result."""
    text = "job 0-40 / steps 0..4 @0 every 5 / save 2 @13-14"
    assert ask(text, at=14)["at_risk_s"] == 0
    assert ask(text, at=15)["at_risk_s"] == 0, "the step itself, now that it has completed"
    assert ask(text, at=25)["at_risk_s"] == 10
    assert ask("job 0-40 / steps 0..4 @0 every 5 / save 13-14", at=25)["at_risk_s"] == 10, "most of its work was done"
    assert ask("job 0-40 / steps 0..4 @0 every 5 / save 12-13", at=25)["at_risk_s"] == 14, "most was still to do"


def test_an_earlier_checkpoint_that_is_stored_later_takes_nothing_back(ask: Ask) -> None:
    text = "job 0-60 / steps 0..9 @0 every 5 / save 1 @10-44 async / save 3 @20-30 async"
    assert ask(text, at=43)["at_risk_s"] == ask(text, at=44)["at_risk_s"] == 20


def test_a_save_that_never_ends_saves_nothing(ask: Ask) -> None:
    assert ask("job 0-40 / steps 0..5 @0 every 5 / save 30-")["at_risk_s"] == 30


def test_a_rollback_lowers_what_is_safe(ask: Ask) -> None:
    answer = ask("job 0-50 / steps 0..3 @0 every 5 / save 20-21 / steps 2..4 @21 every 5")
    assert answer["at_risk_s"] == 15


def test_startup_is_not_at_risk_nor_is_what_is_excluded(ask: Ask) -> None:
    text = "job 0-60 / step 0 @0-40 / steps 1..4 @40 every 5"
    assert ask(text)["at_risk_s"] == 25
    assert ask(text, exclusions=[(38, 50)])["at_risk_s"] == 13


def test_max_productive_step_does_not_fall_by_a_restart_alone(ask: Ask) -> None:
    text = "job 0- / steps 0..5 @0 every 5\nattempt 2\njob 50-80 / prep 50-60 / steps 3..6 @60 every 5"
    assert ask(text, at=59)["max_productive_step"] == 5
    assert ask(text, at=61)["max_productive_step"] == 2
    assert ask(text, at=61)["last_step"] == 3
    assert ask(text)["max_productive_step"] == 6


def test_net_step_time_is_what_the_step_itself_owns(ask: Ask) -> None:
    answer = ask("""
        job 0-60 / step 0 @0-30 / compile train 5-20
        step 1 @30-42 / custom eval 35-36 / load 36-37 sync / save 40-45""")
    # 30 - 15 and 12 - 1 - 1 - 2.
    assert answer["step_time"] == {
        "count": 2,
        "mean_s": 11.5,
        "min_s": 8,
        "median_s": 11.5,
        "p90_s": pytest.approx(14.3),
        "max_s": 15,
    }
    assert "step_time" not in ask("job 0-10")


def test_ideal_step_time_leaves_the_outliers_out(ask: Ask) -> None:
    text = "job 0-100 / step 0 @0-40 / step 1 @40-48 / step 2 @48-58 / step 3 @58-70 / step 4 @70-80"
    # 8, 10, 10, 12, 40: median 10, MAD 2, so all up to 18.9.
    assert ask(text)["ideal_step_time_s"] == 10
    assert ask(text, ideal_step_time=7.5)["ideal_step_time_s"] == 7.5
    assert ask("job 0-100")["ideal_step_time_s"] is None


def test_deviation_compares_the_last_hundred_with_those_before(ask: Ask) -> None:
    assert ask("job 0-100")["step_time_deviation_s"] is None
    # Too few for a past: p90 of 1..11 is 10, the median 6.
    text = " / ".join(f"step {n} @{100 * n}-{100 * n + n + 1}" for n in range(11))
    assert ask(f"job 0-9999 / {text}")["step_time_deviation_s"] == 4
    # 50 steps of 4 s, then 100 of 3 s: better than usual.
    text = "job 0-9999 / steps 0..49 @0 every 5 for 4 / steps 50..149 @1000 every 5 for 3"
    assert ask(text)["step_time_deviation_s"] == -1


def test_slice_efficiency_is_the_mean_over_time_from_the_first_record_on(ask: Ask) -> None:
    text = "job 0-50 / slices 4/4/4 @10 / slices 0/3/4 @30 / slices 2/2/4 @40"
    answer = ask(text, windows=[(0, 5), (0, 20), (35, 45)], exclusions=[(41, 50)])
    assert answer["slice_efficiency"] == {
        "stepping": pytest.approx((20 + 0.5) / 31),
        "available": pytest.approx((20 + 7.5 + 0.5) / 31),
    }
    assert answer["windows"][0]["slice_efficiency"] is None
    assert answer["windows"][1]["slice_efficiency"] == {"stepping": 1, "available": 1}
    assert answer["windows"][2]["slice_efficiency"] == {
        "stepping": pytest.approx(0.5 / 6),
        "available": pytest.approx((3.75 + 0.5) / 6),
    }
    assert ask("job 0-10")["slice_efficiency"] is None


def test_a_total_of_no_slices_counts_as_nothing_for_its_time(ask: Ask) -> None:
    answer = ask("job 0-40 / slices 0/0/0 @0 / slices 4/4/4 @10")
    assert answer["slice_efficiency"] == {"stepping": 0.75, "available": 0.75}


def test_a_record_of_slices_counts_from_its_own_time_on(ask: Ask) -> None:
    # Even where it comes between two lives; of two at the same time the later one holds.
    answer = ask("slices 4/4/4 @0 / job 0-10\nattempt 2\nslices 0/0/4 @15 / job 20-30")
    assert answer["slice_efficiency"] == {"stepping": 0.5, "available": 0.5}
    answer = ask("slices 4/4/4 @0 / slices 0/0/4 @0 / job 0-10")
    assert answer["slice_efficiency"] == {"stepping": 0, "available": 0}


def test_the_step_in_flight_is_the_latest_started(ask: Ask) -> None:
    assert ask("job 0- / step 5 @1- / step 2 @3-", at=9)["in_flight_step"] == 2
    assert ask("job 0- / step 5 @1-2 device 9 / step 6 @2-3 device 12", at=8)["in_flight_step"] == 6


def test_loading_inside_a_step_is_overlapped(ask: Ask) -> None:
    answer = ask("job 0-40 / step 0 @0-20 / load 5-9 / load 15-25 / load 30-50 async / load 12-13 sync")
    # 4 s inside the step and 10 s up to the job end; the load that crosses the step's end holds up training.
    assert answer["overlapped_data_loading_s"] == 4 + 10
    assert answer["seconds"] == {"productive": 14, "data_loading": 1 + 10, "other": 15}


def test_recompilations_count_what_was_compiled_before_in_the_attempt(ask: Ask) -> None:
    text = "job 0-20 / compile train 0-5 / compile eval 5-7 / compile train 9-10 / compile train 11-12"
    assert ask(text)["recompilations"] == 2
    assert ask(f"{text}\nattempt 2\njob 20-30 / compile train 20-25")["recompilations"] == 2


def test_recompilations_are_listed_by_function() -> None:
    text = "job 0-20 / compile a 0-1 / compile b 1-2 / compile b 2-3 / compile a 3-4 / compile b 4-5 / compile 5-6"
    answer = replay(story(text))
    assert answer["recompiled"] == {"b": 2, "a": 1} and list(answer["recompiled"]) == ["b", "a"]
    assert answer["compilations_seen"] and not replay(story("job 0-20 / step 0 @0-10"))["compilations_seen"]
    many = " / ".join(f"compile f{at // 2} {at}-{at + 1}" for at in range(300))
    answer = replay(story(f"job 0-300 / {many}"))
    assert answer["recompilations"] == 150 and len(answer["recompiled"]) == 100


# --- what phases dispatch to the device -----------------------------------------------------------------------------


def test_an_evaluation_on_the_device_is_its_own(ask: Ask) -> None:
    """Dispatched in a second, worked off in ten: it is not the next step's time."""
    answer = ask("job 0-40 / step 0 @0-1 device 10 / custom eval 10-11 device 20 / step 1 @11-12 device 30" + SEEN)
    assert answer["seconds"] == {"productive": 20, "custom": {"eval": 10}, "other": 10}
    assert ask("job 0-40 / custom eval 10-11 async device 20")["seconds"] == {"other": 40}, "it holds up nothing"


def test_a_step_is_on_the_device_behind_the_last_compilation_inside_it(ask: Ask) -> None:
    answer = ask("job 0-30 / step 0 @0-12 device 20 / compile train 1-4 / compile train 5-9 / step 1 @12-13 device 27")
    assert answer["seconds"] == {"productive": 1 + 1 + 11 + 7, "program_startup": 7, "other": 3}
    # One of the next step is none of its.
    answer = ask("job 0-30 / step 0 @0-1 device 20 / step 1 @1-12 device 25 / compile train 2-10")
    assert answer["seconds"] == {"productive": 25, "other": 5}


# --- a loop that is left --------------------------------------------------------------------------------------------


def test_what_a_durable_checkpoint_holds_is_kept(ask: Ask) -> None:
    answer = ask(f"""
        job 0- / steps 0..1 @0 every 5 / step 2 @10- / save 2 @13-14 / heartbeat @16 {SEEN}
        attempt 2
        job 20-30 / step 3 @20-25 {SEEN}""")
    assert answer["steps"] == {"executed": 4, "kept": 4, "lost": 0}
    assert answer["seconds"] == {
        "productive": 15 + 5,
        "checkpoint_save": 1,
        "infrastructure_recovery": 4,
        "other": 5,
    }


def test_a_loop_left_after_a_step_whose_work_outlasts_the_job() -> None:
    """Nothing of its time lies within the job; what it did on the device tells that it did a step's work."""
    rows = [{"kind": "job", "start": 0, "end": 21, "attempt": 1}]
    rows += [
        {"kind": "step", "start": at, "end": at + 0.1, "step": at, "device_end": 10.0 * (at + 1)} for at in range(4)
    ]
    rows[-1]["left"] = True
    assert replay(rows, at=50.0)["steps"] == {"executed": 4, "kept": 4, "lost": 0}
    rows[-1]["device_end"] = 31.0  # nothing had been dispatched in it
    answer = replay(rows, at=50.0)
    assert answer["steps"] == {"executed": 3, "kept": 3, "lost": 0} and answer["last_step"] == 2


@pytest.mark.parametrize("answer", [replay, account], ids=["ledger", "oracle"])
@pytest.mark.parametrize(("numbered", "kept", "skipped"), [(True, 7, 0), (False, 6, 1)])
def test_a_short_first_step_whose_number_was_given_is_no_skipped_batch(
    answer: Callable[[list[dict[str, Any]]], dict[str, Any]], numbered: bool, kept: int, skipped: int
) -> None:
    """Steps take 4 s, the first after the restore takes 1 s; its number, 3, says that it is the one that follows."""
    text = "job 0-20 / steps 0..4 @0 every 4 / save 2 @12-12\nattempt 2\njob 30-50 / restore 2 @30-31"
    first = {"kind": "step", "step": 3, "start": 31, "end": 32, "attempt": 2, "numbered": numbered}
    report = answer([*story(text), first, *story("attempt 2\nsteps 4..6 @32 every 4")])
    assert (report["steps"]["kept"], report["skipped_batches"]) == (kept, skipped)
