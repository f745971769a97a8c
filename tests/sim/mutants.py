"""Known ways to break the product, each of which the suite must notice.

Where two safeguards cover each other, both are taken away together.
"""

from __future__ import annotations

from tests.sim.planting import BlindStore, Mutant

_SAVE_INTENT = (
    "        self.version = runs.save(self.run, expect=self.version)\n        again = runs.load(run.run_id)\n"
)
_QUIET = "case.seen.listed is None or case.seen.listed or in_doubt or now < quiet"

MUTANTS = (
    Mutant(
        "create before the intent is saved",
        (
            ("acts", _SAVE_INTENT, "        again = runs.load(run.run_id)\n"),
            ("acts", "        if again.version != self.version:\n", "        if False:\n"),
            (
                "acts",
                "        else:\n            self._record_instance(attempt, created)\n",
                (
                    "        else:\n            self.version = self.context.runs.save(self.run, expect=self.version)\n"
                    "            self._record_instance(attempt, created)\n"
                ),
            ),
        ),
        scene="a_crash_between_create_and_its_record_is_mended_by_the_next_pass",
    ),
    Mutant(
        "an accepted terminate counts as gone",
        (
            ("states", _QUIET, "now < quiet"),
            (
                "states",
                "    end = verdict(run, spent_usd=case.seen.spent_usd, now=now)\n",
                (
                    "    run = replace(run, attempts=tuple(replace(a, ended_at=a.ended_at or now) for a in run.attempts))\n"
                    "    end = verdict(run, spent_usd=case.seen.spent_usd, now=now)\n"
                ),
            ),
        ),
        scene="a_terminate_that_fails_keeps_the_run_terminating_and_says_so",
    ),
    Mutant(
        "an absence is believed at once",
        (
            ("absence", "or now < attempt.quiet_after or not _is_absent", "or not _is_absent"),
            (
                "absence",
                "    if attempt.missing_since is None:\n        return replace(attempt, missing_since=now)\n",
                "",
            ),
            (
                "absence",
                "    if now - attempt.missing_since < timedelta(seconds=gap_s):\n        return attempt\n",
                "",
            ),
        ),
        scene="a_stop_while_the_reply_to_a_create_is_lost_finds_the_instance",
    ),
    Mutant(
        "the list alone proves the absence of a known instance",
        (
            (
                "absence",
                "    if attempt.instance_id is None:\n        return listed is not None\n",
                "    if listed is not None:\n        return True\n    if attempt.instance_id is None:\n        return False\n",
            ),
            ("absence", "        return by_id or answers.get(attempt.instance_id)\n", "        return by_id\n"),
            ("absence", "or now < attempt.quiet_after or not", "or not"),
            (
                "absence",
                "    if now - attempt.missing_since < timedelta(seconds=gap_s):\n        return attempt\n",
                "",
            ),
        ),
        scene="one_empty_list_proves_nothing",
    ),
    Mutant(
        "an unclear create is sent again",
        (
            (
                "acts",
                '            self.events.append(f"unclear whether an instance was rented ({e.message}); looking for it")\n',
                "            return self._create(attempt)\n",
            ),
        ),
        scene="a_stop_while_the_reply_to_a_create_is_lost_finds_the_instance",
    ),
    Mutant(
        "an unclear create counts as refused",
        (
            (
                "acts",
                '            self.events.append(f"unclear whether an instance was rented ({e.message}); looking for it")\n',
                "            self._not_launched(attempt, e.message, counts=False)\n",
            ),
        ),
        scene="a_stop_while_the_reply_to_a_create_is_lost_finds_the_instance",
    ),
    Mutant("no compare-and-set", store=BlindStore),
    Mutant(
        "the declared list lag is too short",
        (
            ("absence", "return INTENT_FRESH_S + self.create_timeout_s + self.list_lag_s", "return self.list_lag_s"),
            ("absence", "    absence_gap_s: float = 30.0", "    absence_gap_s: float = 1.0"),
        ),
        declared_list_lag_s=1.0,
        scene="a_stop_while_the_reply_to_a_create_is_lost_finds_the_instance",
    ),
    Mutant(
        "stop drops the id",
        (
            (
                "outcomes",
                "stop_requested_at=run.stop_requested_at or now, stop_now",
                "attempts=tuple(replace(a, instance_id=None) for a in run.attempts), stop_requested_at=run.stop_requested_at or now, stop_now",
            ),
            ("absence", "        return listed is not None\n", "        return True\n"),
            ("states", _QUIET, "in_doubt or now < quiet"),
        ),
        scene="a_stop_while_the_list_is_empty_by_mistake_ends_the_instance_by_its_id",
    ),
    Mutant(
        "a lost heartbeat starts another attempt without ending the first",
        (
            (
                "states",
                "    return _unless_too_long(case, True, patience.unreachable_grace_s, why, 15)\n",
                "    return Step(replace(case.run, phase=Phase.PENDING, attempts=tuple(replace(a, ended_at=case.now) for a in case.run.attempts)))\n",
            ),
        ),
        scene="silence_on_both_lines_for_half_an_hour_is_unreachable",
    ),
    Mutant(
        "an instance that answers counts as alive, whatever its agent does",
        (("observe", "age_s > self.context.policy(run.provider).heartbeat_grace_s", "age_s < 0"),),
        scene="an_instance_whose_agent_is_dead_bills_half_an_hour_and_not_a_day",
    ),
    Mutant(
        "silence is death",
        (
            (
                "states",
                "        if not case.is_heard and case.seen.probe is Probe.NOT_ASKED:\n            return Step(case.run, wait_s=15)\n",
                '        if not case.is_heard:\n            return _end(case, Outcome.UNREACHABLE, "silent")\n',
            ),
        ),
        scene="a_control_plane_hiccup_is_not_a_preemption",
    ),
    Mutant(
        "unreachable at the first failed probe",
        (
            (
                "states",
                "    if case.now - current.silent_since < timedelta(seconds=grace_s):\n        return Step(case.run, wait_s=wait_s)\n",
                "",
            ),
        ),
        scene="a_second_outage_gets_the_full_grace_again",
    ),
    Mutant(
        "a second silence goes on counting from the first",
        (
            ("states", "    if since and beat and beat > since:", "    if False and since and beat and beat > since:"),
            (
                "states",
                '        return _unless_too_long(case, False, 0, "", 15)\n',
                "        return Step(case.run, wait_s=15)\n",
            ),
        ),
        scene="a_second_outage_gets_the_full_grace_again",
    ),
    Mutant(
        "outbid counts as gone",
        (
            (
                "absence",
                "    if instance:\n        return replace(\n",
                '    if instance and instance.state == "stopped":\n        return replace(attempt, ended_at=attempt.ended_at or now)\n    if instance:\n        return replace(\n',
            ),
            (
                "states",
                "    ids = live_ids(case.run, case.seen.listed)\n    attempts",
                "    ids = live_ids(case.run, ())\n    attempts",
            ),
            ("states", _QUIET, "case.seen.listed is None or in_doubt or now < quiet"),
            (
                "states",
                "    if case.seen.listed is None or case.seen.listed or any(",
                "    if case.seen.listed is None or any(",
            ),
            (
                "states",
                "    strays = () if step.run.phase is Phase.TERMINATING else _strays(case)\n",
                "    strays = ()\n",
            ),
        ),
        scene="an_outbid_instance_is_destroyed_not_forgotten",
    ),
    Mutant(
        "outbid is not noticed",
        (
            (
                "states",
                "stopped = self.instance is not None and self.instance.state is InstanceState.STOPPED",
                "stopped = False",
            ),
        ),
        scene="an_outbid_instance_is_destroyed_not_forgotten",
    ),
    Mutant(
        "attempts are not bounded",
        (("outcomes", "    if len(tries) >= run.limits.max_attempts:\n", "    if False:\n"),),
        scene="attempts_are_bounded",
    ),
    Mutant(
        "refusals use up the attempts",
        (
            (
                "outcomes",
                "if a.number > run.attempts_at_resume and not a.refused",
                "if a.number > run.attempts_at_resume",
            ),
        ),
        scene="a_thin_market_does_not_use_up_the_attempts",
    ),
    Mutant(
        "refusals are never forgotten",
        (("outcomes", "forgotten = set(refused[:-REMEMBERED_REFUSALS])", "forgotten = set(refused[:0])"),),
        scene="a_thin_market_does_not_use_up_the_attempts",
    ),
    Mutant(
        "a late exit record is ignored",
        (
            (
                "states",
                "    case = replace(case, run=amended(run, seen.exits, _trusted_artifact(case)))\n    if run.phase is Phase.TERMINATING:\n        return _no_longer_than(_terminating(case), policy)\n",
                "    if run.phase is Phase.TERMINATING:\n        return _no_longer_than(_terminating(case), policy)\n    case = replace(case, run=amended(run, seen.exits, _trusted_artifact(case)))\n",
            ),
            (
                "states",
                "    step = _exit_first(case) or",
                "    step = (_exit_first(case) if run.phase is not Phase.PENDING else None) or",
            ),
        ),
        scene="a_late_exit_record_turns_a_loss_into_success",
    ),
    Mutant(
        "an artifact without an exit record counts for nothing",
        (
            (
                "states",
                "    return None if is_at_it and case.is_heard and not case.is_lost else found\n",
                "    return None\n",
            ),
        ),
        scene="an_artifact_counts_although_its_agent_died_before_the_exit_record",
    ),
    Mutant(
        "the exit record comes last",
        (
            (
                "states",
                "    step = _exit_first(case) or _asked_to_leave(case) or _lost(case) or _overcharged(case) or _LIVE[run.phase](case)\n",
                "    step = _asked_to_leave(case) or _lost(case) or _overcharged(case) or _LIVE[run.phase](case)\n",
            ),
        ),
        scene="an_artifact_counts_although_its_agent_died_before_the_exit_record",
    ),
    Mutant(
        "the stop is forgotten at the end of an attempt",
        (
            (
                "outcomes",
                "    if run.stop_requested_at:\n        return Verdict",
                "    if False:\n        return Verdict",
            ),
            (
                "states",
                "    if case.run.stop_requested_at:\n        return Outcome.CANCELLED",
                "    if case.run.stop_requested_at and case.run.phase is Phase.RUNNING:\n        return Outcome.CANCELLED",
            ),
        ),
        scene="a_terminate_that_fails_keeps_the_run_terminating_and_says_so",
    ),
    Mutant(
        "user errors are tried again",
        (("outcomes", "    Outcome.USER_ERROR: 1,", "    Outcome.USER_ERROR: None,"),),
        scene="a_users_error_is_not_paid_for_twice",
    ),
    Mutant(
        "the budget is not looked at",
        (("outcomes", "    if budget is not None and spent_usd >= budget:", "    if False:"),),
        scene="the_budget_ends_the_run_saved_and_a_resume_grants_it_again",
    ),
    Mutant(
        "money counts from the reply",
        (("money", "_hours(attempt.intended_at, _end(", "_hours(attempt.running_at or now, _end("),),
        scene="an_unclear_create_is_settled_by_looking",
    ),
    Mutant(
        "a claim is never given up",
        (("states", "and (run.claim_until is None or now >= run.claim_until)", "and run.claim_until is None"),),
        scene="an_orchestrator_that_dies_while_bootstrapping_is_replaced_when_its_claim_runs_out",
    ),
    Mutant(
        "the id of an overtaken create is dropped, and nobody ends it",
        (
            (
                "acts",
                "            if run.phase.is_terminal:\n                return run\n            known",
                "            if run.phase is not Phase.PROVISIONING or run.attempts[-1].number != attempt.number:\n                return run\n            known",
            ),
            (
                "acts",
                "        if not is_wanted or self.run.phase.is_terminal or self.run.phase is Phase.TERMINATING:\n",
                "        if False:\n",
            ),
            (
                "states",
                "    strays = () if step.run.phase is Phase.TERMINATING else _strays(case)\n",
                "    strays = ()\n",
            ),
            ("states", _QUIET, "case.seen.listed is None or in_doubt or now < quiet"),
            (
                "states",
                "    ids = live_ids(case.run, case.seen.listed)\n    attempts",
                "    ids = live_ids(case.run, ())\n    attempts",
            ),
        ),
        scene="a_reply_that_comes_after_the_run_has_moved_on_leaves_nothing",
    ),
    Mutant(
        "a list younger than the record is trusted",
        (
            (
                "reconcile",
                "    elif step.kill and context.runs.load(run.run_id).version != version:\n",
                "    elif False:\n",
            ),
        ),
        scene="what_somebody_rents_while_another_looks_is_no_stray",
    ),
    Mutant(
        "old intents are acted on",
        (
            ("acts", "        if age_s > INTENT_FRESH_S:\n", "        if False:\n"),
            ("acts", "        if again.version != self.version:\n", "        if False:\n"),
        ),
        scene="a_nap_between_intent_and_create_makes_the_intent_void",
    ),
    Mutant(
        "other attempts' instances are left alone",
        (
            (
                "states",
                "    strays = () if step.run.phase is Phase.TERMINATING else _strays(case)\n",
                "    strays = ()\n",
            ),
        ),
        scene="an_instance_that_shows_up_long_after_its_time_is_ended",
    ),
    Mutant(
        "records are read before the list",
        (
            (
                "observe",
                "        listed_at, listed = self.listing.of(run, now)\n",
                "        exits = self._exits()\n        artifact = None\n        listed_at, listed = self.listing.of(run, now)\n",
            ),
            ("observe", "        exits = self._exits()\n        is_fresh", "        is_fresh"),
            (
                "states",
                "    case = replace(case, run=amended(run, seen.exits, _trusted_artifact(case)))\n    if run.phase is Phase.TERMINATING:\n        return _no_longer_than(_terminating(case), policy)\n",
                "    if run.phase is Phase.TERMINATING:\n        return _no_longer_than(_terminating(case), policy)\n    case = replace(case, run=amended(run, seen.exits, None))\n",
            ),
        ),
        scene="an_instance_whose_agent_ended_it_is_not_taken_for_lost",
    ),
    Mutant(
        "the sweep ends what it sees for the first time",
        (
            (
                "sweep",
                "        patience = timedelta(seconds=context.policy(name).quiet_s)\n",
                "        patience = timedelta(0)\n",
            ),
        ),
        scene="the_sweep_ends_only_what_it_has_seen_before",
    ),
    Mutant(
        "the sweep takes an unreadable record for none",
        (
            (
                "sweep",
                '        report.troubles.append(f"{instance.instance_id} is left alone: {e.message}")\n        return ""\n',
                '        return f"there is no record of run {parts.run_id}"\n',
            ),
        ),
        scene="an_unreadable_record_proves_nothing_to_the_sweep",
    ),
    Mutant(
        "the sweep takes accepted for gone",
        (
            (
                "sweep",
                "        provider.get(orphan.instance.instance_id)\n",
                "        raise InstanceNotFound(orphan.instance.instance_id)\n",
            ),
        ),
        scene="the_sweep_does_not_say_gone_before_it_is",
    ),
    Mutant(
        "the sweep leaves superseded attempts alone",
        (("sweep", "    if parts.attempt != current:\n", "    if False:\n"),),
        scene="the_sweep_ends_what_a_later_attempt_has_replaced",
    ),
    Mutant(
        "one unreadable run stops the pass over all",
        (
            (
                "reconcile",
                "        except TuneError as e:\n            result.errors[run_id] = e\n",
                "        except ZeroDivisionError as e:\n            result.errors[run_id] = e\n",
            ),
        ),
        scene="one_unreadable_run_does_not_stop_the_others",
    ),
)
