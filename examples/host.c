/* Smallest host program: opens a model and prints the output for one prompt as it is generated.
 *
 *     cc host.c $(pkg-config --cflags --libs llmc) -o host
 *     ./host model.gguf "Why is the sky blue?"
 */
#include <llmc.h>
#include <stdio.h>

static bool
print_text(void *user, int32_t id, const char *text, size_t n_bytes)
{
	(void)user;
	(void)id;
	fwrite(text, 1, n_bytes, stdout);
	fflush(stdout);
	return true; /* false stops the generation */
}

int
main(int argc, char **argv)
{
	llmc_model *model = NULL;
	llmc_session *session = NULL;
	llmc_params params = LLMC_INIT(llmc_params);
	llmc_result result = LLMC_INIT(llmc_result);
	llmc_error err;
	int failed = 1;

	if (argc != 3) {
		fprintf(stderr, "usage: host MODEL PROMPT\n");
		return 1;
	}
	params.max_tokens = 64;
	if (llmc_open(argv[1], NULL, &model, &err) == LLMC_OK &&
	    llmc_session_open(model, NULL, &session, &err) == LLMC_OK &&
	    llmc_generate_text(session, argv[2], &params, print_text, NULL, &result, &err) ==
	        LLMC_OK)
		failed = 0;
	if (failed)
		fprintf(stderr, "host: %s\n", err.text);
	else
		printf("\n[%d tokens, %.0f/s]\n", result.n_new,
		       result.decode_s > 0 ? (result.n_new - 1) / result.decode_s : 0.0);
	llmc_session_close(session);
	llmc_close(model);
	return failed;
}
