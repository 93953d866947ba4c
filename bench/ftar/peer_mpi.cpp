// SPDX-License-Identifier: Apache-2.0
// MPI_Allreduce as the peer that most people would reach for. Started by mpirun.
#include <mpi.h>

#include "contender.h"

int main(int argc, char** argv) {
    using namespace bulkhead::bench;
    MPI_Init(&argc, &argv);
    const Task task = taskOf(argc, argv);
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    std::vector<float> in(task.count), out(task.count);
    fill(in.data(), task.count, rank);
    MPI_Barrier(MPI_COMM_WORLD);
    const std::vector<double> ms = timed(task, [&] {
        MPI_Allreduce(in.data(), out.data(), static_cast<int>(task.count), MPI_FLOAT, MPI_SUM,
                      MPI_COMM_WORLD);
    });
    check(out.data(), task);
    if (rank == 0) print(ms);
    MPI_Finalize();
}
