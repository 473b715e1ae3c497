"""Which test shows which of the faults that others have met in programs of this kind, by letter and number.

A is clients that leave, B a load's life, C scheduling, D devices and measuring, G embeddings, H HTTP, I streams, J the
configuration, K the libraries under a server, L tools for agents, M operation. What is shown by another folder's test
is not shown here once more. A number that nothing shows yet is in `NOT_SHOWN`, with the reason.
"""

from collections.abc import Mapping

_LEAVING, _STREAMS = "faults/test_leaving.py", "faults/test_streams.py"
_SETTINGS = "faults/test_settings.py"
_E2E = "e2e/test_leaving.py"
_FRONT_LEAVING, _FRONT_STREAMS, _SSE = "api/test_leaving.py", "api/test_streams.py", "api/test_sse.py"
_HERE, _CARDS, _SERVICE = "faults/test_processes.py", "faults/test_cards.py", "faults/test_service.py"
_REAL = "faults/test_real_engine.py"
_ANSWERS = "faults/test_answers.py"
_VECTORS, _HTTP = "faults/test_embeddings.py", "faults/test_http.py"
_TURNS, _AGENTS = "faults/test_scheduling.py", "faults/test_mcp.py"
_GROWN = "devices/test_difference.py"
_SUPERVISOR, _NVML, _STORIES = "engine/test_supervisor.py", "devices/test_nvml.py", "stories/test_memory.py"
_CHANGES, _RELOADS = "faults/test_configuration.py", "control/test_reloading.py"
_DOUBT = f"{_STORIES}::test_L2_B16_D2_D4_D14_a_reading_that_is_not_believed_is_told_once"

_LEFT = (
    f"{_LEAVING}::test_A1_A4_K1_whoever_leaves_a_running_answer_ends_it",
    f"{_E2E}::test_S8_A1_A4_A11_a_real_engine_stops_for_whoever_leaves",
    f"{_FRONT_LEAVING}::test_S8_a_client_that_leaves_in_whatever_way",
)
_PASSES = f"{_SSE}::test_H2_I3_I12_a_stream_passes_byte_for_byte_with_a_streams_headers"

INDEX: Mapping[str, tuple[str, ...]] = {
    "A1": _LEFT,
    "A2": (
        f"{_LEAVING}::test_A2_whoever_leaves_while_its_model_loads_is_counted_as_gone",
        f"{_FRONT_LEAVING}::test_S8_A2_a_client_that_leaves_while_its_model_loads",
    ),
    "A3": (f"{_LEAVING}::test_A3_a_neighbour_is_told_and_who_waits_is_served_when_one_that_leaves_kills_the_engine",),
    "A4": _LEFT,
    "A6": (
        f"{_LEAVING}::test_A6_fifty_streams_that_break_off_at_any_moment_leave_two_slots_free",
        f"{_FRONT_LEAVING}::test_A6_many_aborted_streams_leave_nothing_behind",
    ),
    "A7": (
        f"{_LEAVING}::test_A7_five_that_leave_the_queue_load_nothing",
        f"{_FRONT_LEAVING}::test_S8_A7_clients_that_leave_the_queue",
    ),
    "A9": (
        f"{_FRONT_LEAVING}::test_A9_a_client_less_patient_than_a_load_is_served_in_the_end",
        "stories/test_attacks_on_loads.py::test_S6c_who_is_less_patient_than_half_a_load_is_served_when_it_comes_again",
    ),
    "A11": (
        f"{_LEAVING}::test_A11_a_slot_is_busy_until_the_engine_says_that_it_is_not",
        f"{_E2E}::test_S8_A1_A4_A11_a_real_engine_stops_for_whoever_leaves",
        "runtime/test_dispatch.py::test_S8_a_slot_is_free_when_the_engine_says_so_twice",
    ),
    "B1": (f"{_HERE}::test_B1_a_model_whose_start_failed_is_started_again_later",),
    "B2": (
        f"{_HERE}::test_B2_a_model_that_was_killed_while_idle_is_loaded_again",
        f"{_REAL}::test_B2_B20_a_real_engine_that_was_killed_is_started_once_for_all_who_ask",
        f"{_ANSWERS}::test_B2_a_process_that_ends_by_itself_between_requests_is_seen_to",
        f"{_SUPERVISOR}::test_B2_death_in_service_is_seen_at_once",
    ),
    "B4": (f"{_HERE}::test_B4_a_client_that_reads_nothing_more_and_dies_does_not_hold_a_drain_for_ever",),
    "B5": (
        f"{_HERE}::test_B5_a_request_for_a_model_that_is_just_going_waits_and_is_served_by_its_next_process",
        f"{_REAL}::test_B5_a_real_engine_ends_its_stream_before_another_takes_its_place",
    ),
    "B7": (
        f"{_HERE}::test_B7_who_waits_is_told_at_once_when_the_process_dies_while_it_loads",
        f"{_ANSWERS}::test_B7_an_engine_is_ready_when_it_says_so_whatever_it_said_before",
        f"{_SUPERVISOR}::test_B7_an_exit_while_starting_is_seen_at_once",
    ),
    "B8": (f"{_HERE}::test_B8_a_model_that_loads_is_no_victim",),
    "B10": (
        f"{_HERE}::test_B10_B11_what_a_killed_gateway_leaves_is_ended_and_nobody_else",
        "engine/test_child.py::test_P2_kill_9_of_the_parent_leaves_no_child",
    ),
    "B11": (
        f"{_HERE}::test_B10_B11_what_a_killed_gateway_leaves_is_ended_and_nobody_else",
        "engine/test_sweep.py::test_B10_B11_orphans_are_ended_and_nobody_else",
    ),
    "B13": (
        "engine/test_ports.py::test_B13_another_programs_port_is_never_ready_and_another_is_tried",
        "engine/test_address.py::test_B13_a_port_is_ours_only_where_our_group_listens",
        f"{_SUPERVISOR}::test_P6_a_process_that_is_not_as_planned_never_becomes_ready",
    ),
    "B15": (
        f"{_HERE}::test_B15_a_load_that_has_just_begun_ends_with_the_last_who_waited_for_it",
        f"{_HERE}::test_B15_a_load_that_is_nearly_done_is_finished_and_serves_who_comes_next",
        f"{_SUPERVISOR}::test_B15_a_start_that_was_told_to_stop_is_asked_nothing_more",
    ),
    "B16": (
        f"{_CARDS}::test_B16_an_engine_that_computes_on_the_processor_is_a_failed_load",
        f"{_SUPERVISOR}::test_B16_a_card_that_the_engine_does_not_list_is_refused_before_a_start",
        _DOUBT,
    ),
    "B17": (f"{_HERE}::test_B17_a_process_that_prints_megabytes_loads_and_serves",),
    "B19": (
        f"{_HERE}::test_B19_a_process_that_will_not_go_is_killed_after_its_grace",
        f"{_SUPERVISOR}::test_B19_a_process_that_ignores_the_signal_is_killed_after_the_grace",
    ),
    "B20": (
        f"{_HERE}::test_B20_twenty_who_ask_for_a_cold_model_at_once_start_it_once",
        f"{_REAL}::test_B2_B20_a_real_engine_that_was_killed_is_started_once_for_all_who_ask",
    ),
    "B21": (f"{_CARDS}::test_B21_a_load_that_failed_holds_nothing",),
    "B24": (
        f"{_HERE}::test_B24_a_load_that_fails_says_why",
        f"{_REAL}::test_B24_a_real_engine_says_what_is_wrong_with_a_file",
        "engine/test_causes.py::test_B24_an_end_that_no_phrase_explains_names_the_last_line",
        "engine/test_logs.py::test_B24_a_secret_that_an_engine_prints_is_kept_nowhere",
    ),
    "B25": ("engine/test_child.py::test_B25_children_are_forked_on_a_thread_that_does_not_end",),
    "B27": (
        f"{_HERE}::test_B27_health_is_what_is_known_and_asks_no_engine",
        "api/test_devices.py::test_D6_where_nothing_is_loaded_and_no_card_answers_nothing_can_be_served",
    ),
    "B29": (
        f"{_HERE}::test_B29_output_that_is_no_text_hinders_no_load",
        "engine/test_logs.py::test_B29_lines_are_the_same_however_they_arrive",
    ),
    "B30": (
        f"{_HERE}::test_B30_addresses_come_back_however_a_process_ends",
        "engine/test_ports.py::test_B30_no_port_is_held_for_a_process_that_is_gone",
        f"{_REAL}::test_B30_real_engines_take_turns_on_one_memory",
    ),
    "C1": (
        f"{_TURNS}::test_C1_a_model_that_answers_is_not_stopped_for_another",
        f"{_REAL}::test_B5_a_real_engine_ends_its_stream_before_another_takes_its_place",
    ),
    "C2": (f"{_TURNS}::test_C2_a_model_that_was_loaded_serves_before_it_goes",),
    "C4": (f"{_TURNS}::test_C4_a_client_that_uses_two_models_in_turn_is_answered_every_time",),
    "C6": (f"{_TURNS}::test_C6_a_job_of_many_steps_is_not_reloaded_for_each",),
    "C7": (f"{_TURNS}::test_C7_nobody_ages_into_a_better_class",),
    "C9": (f"{_TURNS}::test_C9_the_queues_bound_holds_for_a_model_that_is_ready",),
    "C11": (f"{_TURNS}::test_C11_what_was_measured_counts_and_not_the_estimate",),
    "C13": (f"{_TURNS}::test_C13_whoever_only_looks_keeps_no_model_awake",),
    "C15": (
        f"{_TURNS}::test_C15_the_model_that_was_asked_for_answers",
        "library/test_names.py::test_a_word_that_two_files_answer_to_answers_to_neither",
    ),
    "C16": (
        f"{_TURNS}::test_C16_a_pinned_model_is_never_the_one_that_goes",
        "stories/test_pins.py::test_R7_a_pinned_model_that_crashes_comes_back_with_back_off_and_stays_down_when_a_person_unloaded_it",
    ),
    "C18": (f"{_TURNS}::test_C18_the_next_starts_when_the_memory_is_back",),
    "C19": (f"{_TURNS}::test_C19_who_comes_during_a_swap_is_served_after_it",),
    "C20": (
        f"{_TURNS}::test_C20_the_engine_is_told_its_slots_and_its_context",
        f"{_SUPERVISOR}::test_P6_a_process_that_is_not_as_planned_never_becomes_ready",
    ),
    "D1": (
        f"{_CARDS}::test_D1_what_the_driver_keeps_for_itself_is_no_program_of_somebody_elses",
        f"{_NVML}::test_the_drivers_own_share_is_nobodys_memory",
    ),
    "D2": (
        f"{_CARDS}::test_D2_D4_a_process_of_which_the_driver_does_not_tell_is_measured_by_the_difference",
        f"{_NVML}::test_a_missing_figure_is_unknown_never_zero_or_huge",
        f"{_GROWN}::test_D2_D4_a_process_without_a_figure_holds_what_the_use_grew_by",
        _DOUBT,
    ),
    "D4": (
        f"{_CARDS}::test_D2_D4_a_process_of_which_the_driver_does_not_tell_is_measured_by_the_difference",
        f"{_NVML}::test_a_process_the_driver_does_not_list_is_unknown",
        f"{_GROWN}::test_D4_own_memory_is_never_an_outside_programs",
        "devices/test_host.py::test_D4_in_a_container_with_its_hosts_proc_our_processes_are_found_there",
        _DOUBT,
    ),
    "D6": (
        f"{_CARDS}::test_D6_a_lost_driver_stops_loads_and_nothing_else",
        f"{_CARDS}::test_D6_a_driver_that_does_not_answer_at_the_start_is_told_of_as_long_as_its_cards_are_not_used",
        f"{_NVML}::test_D6_a_hundred_readings_of_a_lost_card_are_one_line",
        f"{_NVML}::test_a_lost_driver_is_opened_again_with_growing_pauses",
    ),
    "D7": (
        f"{_CARDS}::test_D7_a_board_whose_memory_is_the_hosts_serves_with_a_configured_size",
        f"{_NVML}::test_D7_a_card_that_does_not_tell_its_memory_is_named_and_not_used",
        f"{_NVML}::test_D7_a_configured_size_is_planned_and_its_use_is_read_from_the_host",
    ),
    "D8": (
        f"{_CARDS}::test_D8_a_model_computes_on_the_card_that_it_was_planned_on",
        f"{_SUPERVISOR}::test_D8_an_engine_that_computes_on_another_card_is_a_failed_load",
        f"{_NVML}::test_pci_addresses_are_hexadecimal",
    ),
    "D10": (f"{_CARDS}::test_D10_memory_that_outlives_its_process_evicts_nobody",),
    "D13": (
        f"{_CARDS}::test_D13_a_process_whose_device_fails_is_started_anew_and_nobody_is_told",
        "engine/test_faultwatch.py::test_D13_any_other_500_passes_byte_for_byte",
        "runtime/test_steady.py::test_D13_after_two_hours_away_nothing_has_run_out",
        "runtime/test_steady.py::test_D13_a_machine_that_slept_is_told_of_and_nothing_else_changes",
    ),
    "D14": (
        f"{_GROWN}::test_D14_managed_memory_never_replaces_the_estimate",
        _DOUBT,
        "vram/test_environment.py::test_E25_what_would_move_memory_or_devices_is_refused_by_name",
    ),
    "G1": (
        f"{_VECTORS}::test_G1_every_encoding_gives_the_same_vectors_in_every_step",
        f"{_VECTORS}::test_G1_a_real_embedder_gives_the_same_numbers_in_both_encodings",
    ),
    "G3": (f"{_VECTORS}::test_G3_seventy_inputs_keep_their_vectors_whatever_order_an_engine_gives",),
    "G4": (
        f"{_VECTORS}::test_G4_one_input_that_is_too_long_fails_the_request_and_is_found",
        f"{_VECTORS}::test_G4_a_real_engines_refusal_of_a_long_input_is_a_400",
    ),
    "G5": (f"{_VECTORS}::test_G5_no_engine_is_given_more_than_thirty_two_inputs_at_once",),
    "G6": (
        f"{_VECTORS}::test_G6_numbers_of_tokens_are_one_input_and_lists_of_them_are_many",
        f"{_VECTORS}::test_G6_a_real_embedder_takes_tokens_for_what_they_mean",
    ),
    "G8": (
        f"{_VECTORS}::test_G8_a_vector_with_a_hole_never_reaches_a_client",
        "api/test_embeddings.py::test_a_vector_that_is_not_finite_never_reaches_a_client",
    ),
    "G9": (
        f"{_VECTORS}::test_G9_a_model_that_cannot_is_told_of_before_anything_is_loaded",
        f"{_VECTORS}::test_G9_the_real_embedder_is_no_chat",
    ),
    "H1": (
        "api/test_data_plane.py::test_H1_H5_what_cannot_be_served_is_a_real_4xx_in_openais_shape",
        "api/test_http.py::test_H1_odd_paths_are_found_as_they_are_or_not_at_all",
        "api/test_http.py::test_H1_another_method_is_a_405_that_names_the_right_ones",
    ),
    "H2": (f"{_HTTP}::test_H2_an_unknown_model_is_a_404_before_the_first_byte_of_anything",),
    "H4": (
        "api/test_bad_input.py::test_H1_H4_bad_input_is_a_4xx_and_nothing_is_queued_or_loaded",
        "api/test_members.py::test_H1_what_no_engine_should_be_given_is_refused_with_a_sentence",
    ),
    "H6": (
        f"{_HTTP}::test_H6_a_chunked_body_goes_up_with_one_length_and_an_empty_one_is_refused",
        "api/test_http.py::test_H6_damaged_chunks_end_their_request_and_nothing_is_queued",
        "api/test_http.py::test_H6_a_client_that_waits_to_be_told_to_go_on_is_told",
    ),
    "H7": (
        f"{_HTTP}::test_H7_each_header_is_said_once_whatever_the_engine_says",
        "api/test_cors.py::test_every_header_of_an_answer_to_a_page_is_sent_once",
    ),
    "H9": (f"{_HTTP}::test_H9_hop_by_hop_headers_stay_on_their_hop_and_codings_agree_with_bodies",),
    "H10": (
        f"{_HTTP}::test_H10_large_bodies_pass_and_larger_ones_are_refused_at_once",
        "api/test_http.py::test_H10_too_long_a_body_is_refused_as_soon_as_that_is_known_and_the_rest_is_read",
        "api/test_http.py::test_H10_a_slow_upload_is_no_stopped_one",
        "api/test_bad_input.py::test_S7_a_body_that_is_expensive_to_read_holds_nobody_up",
    ),
    "H12": (
        "control/test_models.py::test_H12_the_list_is_openais_and_never_changes_its_order",
        "control/test_models.py::test_H12_a_model_is_found_by_a_name_with_slashes_raw_or_encoded",
        "e2e/test_protocols.py::test_H12_the_openai_sdk_lists_and_finds_models",
    ),
    "H13": ("faults/test_scheduling.py::test_H13_names_are_taken_whole_and_only_a_class_is_cut_off",),
    "H15": (
        f"{_HTTP}::test_H15_a_request_for_a_model_that_loads_is_held_and_no_try_is_used_up",
        "control/test_problems.py::test_H15_a_client_is_told_when_to_try_again_and_when_not",
    ),
    "H16": (f"{_HTTP}::test_H16_a_prompt_that_is_too_long_is_the_engines_own_answer",),
    "H18": (f"{_HTTP}::test_H18_telling_what_there_is_starts_nothing_and_shows_one_that_is_loaded",),
    "I1": (
        f"{_FRONT_STREAMS}::test_I1_comments_are_read_over_by_parsers_and_are_not_there_for_who_cannot",
        f"{_FRONT_STREAMS}::test_H3_I1_comments_can_be_switched_off",
        f"{_FRONT_STREAMS}::test_H3_I1_a_request_has_comments_that_it_asks_for_in_its_interval",
        f"{_FRONT_STREAMS}::test_H3_I1_an_answer_that_is_not_streamed_has_no_comments",
        f"{_SSE}::test_H3_no_comment_while_events_flow",
    ),
    "I3": (f"{_STREAMS}::test_I3_an_engines_own_framing_of_events_passes_as_it_is", _PASSES),
    "I4": (
        f"{_STREAMS}::test_I4_a_stream_that_breaks_off_says_so",
        f"{_SSE}::test_H3_an_engine_that_dies_in_mid_stream_is_an_error_frame",
    ),
    "I6": (f"{_FRONT_STREAMS}::test_I6_usage_is_asked_for_by_the_client_alone",),
    "I8": (
        f"{_FRONT_STREAMS}::test_I8_no_word_of_ours_is_in_an_answer",
        f"{_FRONT_STREAMS}::test_H1_I8_what_can_be_known_is_said_before_a_streams_head",
        f"{_SSE}::test_H3_a_refusal_within_the_hold_is_a_real_status",
    ),
    "I9": (f"{_STREAMS}::test_I9_letters_that_arrive_byte_after_byte_are_the_same_at_the_end",),
    "I11": (f"{_FRONT_STREAMS}::test_I11_calls_of_tools_pass_in_their_order",),
    "I12": (f"{_STREAMS}::test_I12_a_streams_head_keeps_proxies_from_holding_it_back", _PASSES),
    "I13": (
        f"{_FRONT_STREAMS}::test_I13_a_stream_of_hours_is_cut_off_by_no_limit",
        f"{_FRONT_STREAMS}::test_I13_a_load_of_75_seconds_is_waited_for",
        f"{_FRONT_STREAMS}::test_I13_the_decision_log_is_followed_for_as_long_as_one_likes",
        f"{_FRONT_STREAMS}::test_H3_I1_an_answer_that_is_not_streamed_has_no_comments",
    ),
    "J1": (
        f"{_SETTINGS}::test_J1_a_name_is_the_text_that_was_written",
        f"{_SETTINGS}::test_J1_a_flag_s_word_is_the_text_that_was_written",
        f"{_SETTINGS}::test_J1_a_number_in_quotes_is_no_number",
        "settings/test_edit.py::test_what_is_no_text_of_its_own_is_quoted",
    ),
    "J2": (
        f"{_SETTINGS}::test_J2_nothing_is_said_twice_in_silence",
        f"{_SETTINGS}::test_J2_what_a_merge_brings_in_may_be_overridden",
        "settings/test_faults.py::test_J2_every_duplicate_key_names_both_lines",
    ),
    "J4": (f"{_SETTINGS}::test_J4_no_word_is_taken_for_a_truth",),
    "J5": (
        f"{_SETTINGS}::test_J5_flags_are_the_same_words_however_they_are_written",
        f"{_SETTINGS}::test_J5_what_would_lose_a_flag_is_refused",
        "api/test_configuring.py::test_J5_what_a_process_was_started_with_is_shown",
        "settings/test_values.py::test_J5_a_comment_in_a_folded_text_is_refused",
    ),
    "J7": (
        f"{_SETTINGS}::test_J7_a_key_at_the_wrong_level_is_told_where_it_belongs",
        "settings/test_faults.py::test_J7_an_unknown_key_is_told_the_nearest_or_its_place",
        f"{_CHANGES}::test_J7_J11_a_bad_file_is_refused_whole_by_signal_too_and_the_server_lives",
        f"{_RELOADS}::test_J7_a_bad_file_changes_nothing_and_a_good_one_all",
    ),
    "J8": (
        f"{_CHANGES}::test_J8_twenty_replacements_in_a_second_during_a_load_and_a_stream",
        f"{_CHANGES}::test_J8_figures_hold_from_the_next_request_on",
        f"{_RELOADS}::test_J8_who_asks_while_one_is_under_way_shares_the_next",
    ),
    "J10": (
        f"{_CHANGES}::test_J10_every_way_to_replace_the_file_is_noticed_each_time",
        f"{_CHANGES}::test_J10_a_file_that_is_deleted_leaves_what_ran_and_is_told",
        f"{_RELOADS}::test_J10_the_file_is_followed_by_what_it_says",
        f"{_RELOADS}::test_J10_a_change_is_seen_within_two_seconds",
    ),
    "J11": (
        f"{_CHANGES}::test_J11_a_hang_up_reloads_where_it_was_ignored_at_the_start_too",
        f"{_CHANGES}::test_J7_J11_a_bad_file_is_refused_whole_by_signal_too_and_the_server_lives",
    ),
    "J13": (
        f"{_SETTINGS}::test_J13_a_variable_that_is_not_set_is_told_with_its_line",
        f"{_SETTINGS}::test_J13_one_path_is_one_path",
    ),
    "K1": (*_LEFT, "api/test_connection.py::test_http2_from_the_first_byte_is_refused"),
    "K3": (
        f"{_LEAVING}::test_K3_K8_five_hundred_that_are_cancelled_cost_no_descriptor_and_no_word",
        "engine/test_upstream.py::test_K3_hundreds_of_cancelled_requests_leave_nothing_open",
    ),
    "K4": (
        f"{_STREAMS}::test_K4_an_engine_that_closes_connections_costs_nobody_an_answer",
        f"{_STREAMS}::test_K4_a_connection_that_is_closed_unanswered_is_not_a_502",
    ),
    "K6": (
        f"{_STREAMS}::test_K6_a_gateway_that_is_told_to_end_ends_streams_in_their_order",
        f"{_SERVICE}::test_P8_K6_a_second_signal_waits_for_nobody_and_leaves_nothing",
        "api/test_shutdown.py::test_P8_a_stream_that_outlives_the_drain_is_told",
        "runtime/test_verbs.py::test_P8_it_ends_with_the_code_that_was_asked_for",
    ),
    "K8": (
        f"{_LEAVING}::test_K3_K8_five_hundred_that_are_cancelled_cost_no_descriptor_and_no_word",
        f"{_FRONT_STREAMS}::test_K8_a_bug_of_ours_is_said_once_with_its_stack",
    ),
    "L1": (f"{_AGENTS}::test_L1_a_session_of_a_server_that_is_gone_is_not_known",),
    "L3": (
        f"{_AGENTS}::test_L3_a_client_that_is_killed_in_mid_load_leaves_nothing_behind",
        "mcp/test_server.py::test_A9_a_load_goes_on_when_whoever_asked_gives_the_call_up",
    ),
    "L5": (
        "mcp/test_door.py::test_H6_L5_a_page_from_elsewhere_calls_no_tool",
        "api/test_origin.py::test_H6_a_foreign_host_or_origin_is_refused",
        "api/test_cors.py::test_H6_a_page_that_is_not_listed_gets_nothing_and_can_read_nothing",
    ),
    "L6": (
        f"{_AGENTS}::test_L6_twenty_calls_at_once_on_trio_one_of_which_fails",
        "mcp/test_calling.py::test_L6_a_bug_in_a_tool_is_an_error_of_that_call",
    ),
    "L7": (f"{_AGENTS}::test_L7_a_server_can_begin_again_in_one_process",),
    "M1": (
        "cli/test_install_service.py::test_M1_both_services_are_written_enabled_and_started",
        "cli/test_install_service.py::test_M1_without_lingering_the_exact_command_is_said_and_the_code_is_1",
        "service/test_units.py::test_the_gateways_limits_are_longer_than_what_they_bound",
        "service/test_units.py::test_M10_the_exit_codes_of_the_unit_are_the_products",
    ),
    "M3": (
        f"{_SERVICE}::test_M3_a_flood_of_output_stays_within_bounds_and_hinders_nobody",
        "engine/test_logs.py::test_M3_a_log_rotates_by_size_and_keeps_so_many",
        "engine/test_logs.py::test_M3_a_flood_of_output_leaves_the_loop_the_memory_and_the_disk_alone",
        "engine/test_logs.py::test_M3_lines_beyond_what_the_files_hold_are_dropped_counted_and_said",
    ),
    "M5": (
        "api/test_admin.py::test_M5_made_up_names_make_no_series",
        "metrics/test_registry.py::test_M5_the_page_is_as_long_after_many_requests_of_the_same_kinds",
    ),
    "M7": (
        "metrics/test_registry.py::test_two_registries_do_not_meet",
        "metrics/test_registry.py::test_M7_a_model_that_is_gone_has_no_series_and_begins_anew_at_nothing",
        "metrics/test_registry.py::test_M7_what_is_watched_anew_makes_no_series_twice",
        "faults/test_configuration.py::test_M7_ten_reloads_leave_every_count_and_a_model_that_goes_takes_its_series_along",
    ),
    "M9": (
        "external/browser/test_safety.py::test_M9_what_comes_from_outside_is_text_in_every_view",
        "external/browser/test_safety.py::test_M9_names_that_only_a_driver_tells_are_text_too",
        "panel/test_pages.py::test_M9_the_policy_lets_nothing_inline_run",
    ),
    "M10": (
        "cli/test_refusals.py::test_a_port_that_is_taken_names_its_holder",
        "cli/test_refusals.py::test_a_data_directory_in_use_names_its_holder",
        "service/test_units.py::test_M10_the_exit_codes_of_the_unit_are_the_products",
    ),
    "M11": (
        f"{_SERVICE}::test_M11_a_process_that_grows_with_every_request_is_started_anew_in_a_quiet_moment",
        "devices/test_processes.py::test_M11_it_is_what_nobody_else_can_have_of_the_whole_family",
        "api/test_devices.py::test_M11_host_memory_of_a_process_is_told",
        "stories/test_growth.py::test_M11_a_process_beyond_its_host_memory_is_begun_anew_while_nobody_uses_it",
        "engine/test_oomkills.py::test_P6a_each_such_death_is_told_of_one_process",
    ),
}
"""By number, the tests that show it: a file under `tests`, and a function there."""

NOT_SHOWN: Mapping[str, str] = {}
"""By number, why nothing shows it."""
