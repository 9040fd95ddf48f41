/* A program that initialises MPI itself: half of its processes become the ranks of a model, the
 * others continue with their own work.
 *
 *     mpicc mpi.c $(pkg-config --cflags --libs llmc) -o mpi
 *     mpirun -n 4 ./mpi model.gguf cpu 504 3575 282 4649 314
 *
 * The numbers are the token ids of a prompt; rank 0 prints the generated ids. */
#include <llmc.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 12, PROMPT = 256 };

static bool
show(void *user, int32_t id, const char *text, size_t n_bytes)
{
	(void)user;
	(void)text;
	(void)n_bytes;
	printf(" %d", id);
	return true;
}

/* Rank 0 uses the model; every other rank only calls llmc_follow. */
static llmc_status
use(llmc_model *model, char **word, int n_word, llmc_error *err)
{
	llmc_model_info info = LLMC_INIT(llmc_model_info);
	llmc_params params = LLMC_INIT(llmc_params);
	llmc_result result = LLMC_INIT(llmc_result);
	llmc_session *session = NULL;
	int32_t prompt[PROMPT];

	llmc_info(model, &info);
	if (info.rank > 0)
		return llmc_follow(model, err);
	for (int i = 0; i < n_word; i++)
		prompt[i] = atoi(word[i]);
	params.max_tokens = MOST;
	params.ignore_eos = true;
	llmc_status status = llmc_session_open(model, NULL, &session, err);
	if (status == LLMC_OK) {
		printf("%d ranks:", info.ranks);
		status = llmc_generate(session, prompt, (size_t)n_word, &params, show, NULL,
		                       &result, err);
		printf("\n");
	}
	llmc_session_close(session);
	return status;
}

int
main(int argc, char **argv)
{
	llmc_options options = LLMC_INIT(llmc_options);
	llmc_model *model = NULL;
	llmc_status status = LLMC_OK;
	llmc_error err;
	MPI_Comm half;
	int level, rank, size, sum;

	/* llmc calls MPI from its own threads, but from only one at a time */
	MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
	if (argc < 4 || argc > 3 + PROMPT) {
		fprintf(stderr, "usage: mpi MODEL DEVICE TOKEN ...\n");
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Comm_split(MPI_COMM_WORLD, rank < size / 2, rank, &half);
	if (rank < size / 2) {
		options.device = argv[2];
		options.mpi_comm = &half;
		status = llmc_open(argv[1], &options, &model, &err); /* every process of `half` */
		if (status == LLMC_OK)
			status = use(model, argv + 3, argc - 3, &err);
		llmc_close(model);
		if (status != LLMC_OK) {
			fprintf(stderr, "mpi: process %d: %s\n", rank, err.text);
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
	}
	/* MPI still belongs to this program */
	MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == size - 1)
		printf("%d processes, %d together\n", size, sum);
	MPI_Comm_free(&half);
	MPI_Finalize();
	return 0;
}
