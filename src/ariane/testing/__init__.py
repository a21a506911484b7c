"""What tests of programs that use Ariane need: a cluster in this process, or one in virtual time, a disk that fails, real Java
peers."""
