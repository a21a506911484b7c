"""Statistics of the broker: counters, their samples, and the log that shows them. Only journal and recorder touch disk and clock.

stats_items       counters that only grow, and what they added in a minute, hour and day     [StatsItem, MomentStatsItem]
broker_stats      every statistic by name and key; the methods that handlers call            [BrokerStatsManager, BrokerStats]
store_stats       rates of puts and gets, and put times                                      [StoreStatsService]
stats_schedule    when to sample and when to print
stats_log_format  the lines of stats.log
stats_journal     stats.log and its older generations
stats_recorder    the task that samples and prints
"""
