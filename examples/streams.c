/* Three prompts at once: an engine runs them in one batch, and each output is printed as soon as it
 * is complete.
 *
 *     cc streams.c $(pkg-config --cflags --libs llmc) -o streams
 *     ./streams model.gguf "The capital of France is" "Water boils at" "The first president was"
 */
#include <llmc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STREAMS = 3, MOST = 48 };

typedef struct Stream {
	const char *prompt;
	char text[MOST * 64];
	size_t n_bytes;
} Stream;

/* Submit a request. The engine runs it whether or not its events are read. */
static llmc_status
launch(llmc_model *model, llmc_engine *engine, Stream *stream, llmc_error *err)
{
	const llmc_tokenizer *tok = llmc_model_tokenizer(model);
	llmc_request request = LLMC_INIT(llmc_request);
	llmc_params params = LLMC_INIT(llmc_params);
	int32_t ids[4096];
	size_t n = 0;
	int64_t id;

	llmc_status status = llmc_tokenize(tok, stream->prompt, strlen(stream->prompt),
	                                   LLMC_ADD_SPECIAL, ids, 4096, &n, err);
	if (status != LLMC_OK)
		return status;
	params.max_tokens = MOST;
	request.tok = ids;
	request.n_tok = n;
	request.params = &params;
	request.user = stream;
	return llmc_submit(engine, &request, &id, err);
}

/* Read the events of all three requests; event.user identifies the request. */
static int
answer(llmc_engine *engine, int left, llmc_error *err)
{
	llmc_event event = LLMC_INIT(llmc_event);
	int failed = 0;

	while (left && !failed) {
		if (llmc_next(engine, LLMC_ANY, -1, &event, err) != LLMC_OK)
			return 1;
		Stream *stream = (Stream *)event.user;
		if (event.kind == LLMC_EVENT_ERROR) {
			snprintf(err->text, sizeof err->text, "%s", event.text);
			failed = 1;
		} else if (stream->n_bytes + event.n_bytes < sizeof stream->text) {
			memcpy(stream->text + stream->n_bytes, event.text, event.n_bytes);
			stream->n_bytes += event.n_bytes;
		}
		if (event.kind == LLMC_EVENT_FINISH)
			printf("%s%s\n[%d tokens, first after %.0f ms]\n\n", stream->prompt,
			       stream->text, event.n_new, 1000 * (event.queue_s + event.prefill_s));
		left -= event.last;
	}
	llmc_event_release(&event);
	return failed;
}

int
main(int argc, char **argv)
{
	static Stream stream[STREAMS];
	llmc_engine *engine = NULL;
	llmc_model *model = NULL;
	llmc_error err;
	int failed;

	if (argc != 2 + STREAMS) {
		fprintf(stderr, "usage: streams MODEL PROMPT PROMPT PROMPT\n");
		return 1;
	}
	failed = llmc_open(argv[1], NULL, &model, &err) != LLMC_OK ||
	         llmc_engine_open(model, NULL, &engine, &err) != LLMC_OK;
	for (int i = 0; i < STREAMS && !failed; i++) {
		stream[i].prompt = argv[2 + i];
		failed = launch(model, engine, &stream[i], &err) != LLMC_OK;
	}
	if (!failed)
		failed = answer(engine, STREAMS, &err);
	if (failed)
		fprintf(stderr, "streams: %s\n", err.text);
	llmc_engine_close(engine, 0);
	llmc_close(model);
	return failed;
}
