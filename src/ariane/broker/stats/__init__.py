"""What the broker counts, and how it tells: values given `now`, but for the two files that touch time and disk.

items     counters that grow, their samples, what a minute, an hour, a day held         [StatsItem, MomentStatsItem]
counters  every statistic of the broker by name and key; what the handlers raise        [BrokerStatsManager, BrokerStats]
puts      what the store did: rates, and how long puts took                             [StoreStatsService]
schedule  when to sample and when to print
lines     the lines of stats.log
journal   stats.log itself: a file and its older generations
recorder  the task that samples and prints
"""
