"""What tests of programs that use Ariane need: a cluster in this process, a disk that fails, real Java peers."""
