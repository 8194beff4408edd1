/* MPI's all_reduce between two processes, for `bench collectives --peer`: as allreduce.py, with
 * MPI_Allreduce.
 * mpicc.mpich -O2 allreduce_mpi.c -o allreduce_mpi; MPIR_CVAR_NOLOCAL=1 mpiexec.mpich -n 2 ./allreduce_mpi   (sockets instead of shared memory) */
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (;;) {
        long order[2] = {0, 0};
        if (rank == 0 && scanf("%ld %ld", &order[0], &order[1]) != 2) {
            order[1] = 0;
        }
        MPI_Request request;
        int done = 0;
        MPI_Ibcast(order, 2, MPI_LONG, 0, MPI_COMM_WORLD, &request);
        for (MPI_Test(&request, &done, MPI_STATUS_IGNORE); !done; MPI_Test(&request, &done, MPI_STATUS_IGNORE)) {
            usleep(1000); /* others are measured meanwhile: no core for waiting */
        }
        if (order[1] == 0) {
            break;
        }
        int count = (int)(order[0] / (long)sizeof(float));
        float *x = malloc((size_t)count * sizeof *x);
        for (int i = 0; i < count; i++) {
            x[i] = 0x1p-70f;
        }
        MPI_Allreduce(MPI_IN_PLACE, x, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
        double began = MPI_Wtime();
        for (long i = 0; i < order[1]; i++) {
            MPI_Allreduce(MPI_IN_PLACE, x, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        }
        double mean = (MPI_Wtime() - began) / (double)order[1], slowest;
        MPI_Allreduce(&mean, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (rank == 0) {
            printf("%.9f\n", slowest);
            fflush(stdout);
        }
        free(x);
    }
    MPI_Finalize();
    return 0;
}
