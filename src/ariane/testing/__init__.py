"""PUBLIC: test support for programs that use Ariane.

plugin            the pytest fixture `ariane_cluster`
cluster           a name server and a broker in this process
virtual_cluster   a whole cluster in virtual time, with a simulated network and disk
clock             a clock that the test advances
disk              a disk in memory that fails and loses power
java              real Java 4.9.4 servers and clients
"""
