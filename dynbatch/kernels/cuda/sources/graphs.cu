// What CUDA graphs of a loop's steps need beside its kernels: see kernels/cuda/runtime/graphs.py.
//
// place has two numbers: the address of a table of arguments, a row a step, and the step at which
// the next graph begins. Block 1, grid 1.

extern "C" __global__ void begin_steps(unsigned long long* place, const unsigned long long* table) {
    place[0] = (unsigned long long)table;
    place[1] = 0;
}

extern "C" __global__ void advance_steps(unsigned long long* place, int steps) {
    place[1] += steps;
}
