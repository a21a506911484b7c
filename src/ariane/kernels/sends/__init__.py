"""Plain sends of a turn: frames in; records, queue entries, index keys and responses out.

send_turn        what a run of sends takes and returns: the interface of its encoders
send_encoder     received frames → records, queue entries, index keys, responses
send_layouts     headers like those before them → the values that differ
send_responses   what was stored → frames of responses
"""
