"""Plain pulls of a turn: frames, queue entries and a map of the log in; responses out.

pull_turn        headers of requests and of responses
pull_reader      received frames → what they have in common, and numbers
pull_selection   queue entries, a map of the log → the body of one response
pull_answers     the same for all pulls of a turn → frames of responses
"""
