/* Options of llmc serve. */
#include "base/json_schema.h"
#include "cli/serve_options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* destination of the table below */
static ServeArgs given;

static Opt opt[] = {
	{ OPT_GROUP, 0, "Address", NULL, NULL, NULL },
	{ OPT_TEXT, 0, "host", "ADDRESS", &given.so.host,
	  "address to listen on; beyond loopback a key is required [127.0.0.1]" },
	{ OPT_INT, 'p', "port", "N", &given.so.port,
	  "port to listen on; 0: the kernel chooses one [8000]" },
	{ OPT_TEXT, 0, "api-key", "KEY", &given.so.api_key,
	  "key that clients must send as 'Authorization: Bearer KEY' [none]" },
	{ OPT_TEXT, 0, "api-key-file", "FILE", &given.key_file,
	  "file whose first line is the API key" },
	{ OPT_TEXT, 0, "keys", "FILE", &given.so.keys,
	  "file of keys with limits, one per line: NAME KEY [requests=N] [tokens=N] "
	  "[priority=N]; SIGHUP reloads it [none]" },
	{ OPT_FLAG, 0, "share-prefix", NULL, &given.so.share_prefix,
	  "share cached prefix pages between the keys of --keys; a client can then test "
	  "what others have sent" },
	{ OPT_FLAG, 0, "open-probes", NULL, &given.so.open_probes,
	  "serve /metrics, /v1/models, /get_load and /model_info without a key, for "
	  "routers and scrapers" },
	{ OPT_FLAG, 0, "allow-remote", NULL, &given.so.allow_remote,
	  "allow an address beyond loopback without a key" },
	{ OPT_TEXT, 0, "allow-origin", "ORIGIN", &given.so.allow_origin,
	  "allow web pages of this origin to call; * for all [none]" },
	{ OPT_TEXT, 0, "allow-host", "NAMES", &given.so.allow_host,
	  "without a key, further Host names to accept: a.b,c.d or * [addresses, "
	  "localhost]" },
	{ OPT_TEXT, 0, "model-name", "NAME", &given.model_name,
	  "name of the model in the API; further names after commas, and * for any [its own "
	  "name]" },
	{ OPT_TEXT, 0, "config", "FILE", &given.config,
	  "YAML file of these options, one per line: 'port: 8000'" },
	{ OPT_GROUP, 0, "Models", NULL, NULL, NULL },
	{ OPT_LIST, 0, "model", "NAME=PATH", &given.models,
	  "model and its name in the API; may be repeated: the first is opened at once, "
	  "the others on their first request" },
	{ OPT_TEXT, 0, "models-dir", "DIR", &given.so.models_dir,
	  "folder of models that requests may name in addition: DIR/NAME.gguf, DIR/NAME/ or "
	  "DIR/ORG/NAME/; each is opened on its first request [none]" },
	{ OPT_FLAG, 0, "models-pulled", NULL, &given.so.models_pulled,
	  "requests may also name the models of llmc list" },
	{ OPT_TEXT, 0, "weights-dir", "DIR", &given.so.weights_dir,
	  "folder from which POST /v1/weights may replace the weights of an open model [not "
	  "allowed]" },
	{ OPT_INT, 0, "lora-slots", "N", &given.slots,
	  "N adapters share the model's engine and one batch; the least recently used is "
	  "replaced; 0: each adapter has its own copy of the weights [0]" },
	{ OPT_INT, 0, "lora-rank", "N", &given.rank,
	  "largest adapter rank that a slot holds [16]" },
	{ OPT_TEXT, 0, "lora-dir", "DIR", &given.so.lora_dir,
	  "folder from which clients may load adapters with /v1/load_lora_adapter [not "
	  "allowed]" },
	{ OPT_FLOAT, 0, "sleep-after", "SECONDS", &given.sleep_s,
	  "close the engine of a model that was idle this long; its next request opens it "
	  "again [never]" },
	{ OPT_GROUP, 0, "Requests", NULL, NULL, NULL },
	{ OPT_INT, 0, "max-input-length", "N", &given.so.max_input_length,
	  "largest number of prompt tokens [max-total-tokens - 1]" },
	{ OPT_INT, 0, "max-total-tokens", "N", &given.so.max_total_tokens,
	  "largest number of prompt and new tokens together [the context]" },
	{ OPT_BYTES, 0, "max-body-size", "SIZE", &given.so.max_body_bytes,
	  "largest request body; a larger one gets 413 [2M; 20M if a model reads images]" },
	{ OPT_TEXT, 0, "special-tokens-in-content", "KIND", &given.special,
	  "special tokens in messages, names, tools and tool results: special, as in the "
	  "reference implementations, or text [special]" },
	OPT_CHAT_TEMPLATE(given.c),
	{ OPT_TEXT, 0, "chat-template-kwargs", "JSON", &given.so.chat_template_kwargs,
	  "variables of the chat template that requests omit, such as {\"enable_thinking\": "
	  "false} [none]" },
	OPT_ADDITIONAL(given.additional,
	               "whether objects of a schema without additionalProperties may have "
	               "unlisted properties: auto (if it names its dialect with $schema), closed "
	               "or open; with strict, and in arguments of calls, they are closed [auto]"),
	OPT_SAMPLING_BY(given.sampling, "model: the model's own advice, where its files have "
	                                "some, is the default of sampling fields that a "
	                                "request omits; neutral: each API's own is [model]"),
	{ OPT_FLOAT, 0, "request-timeout", "SECONDS", &given.request_s,
	  "time after which a request fails [no limit]" },
	{ OPT_GROUP, 0, "Images", NULL, NULL, NULL },
	{ OPT_FLAG, 0, "no-images", NULL, &given.no_images,
	  "serve the language model only, without the vision tower of a model that has one" },
	OPT_MMPROJ(given.c),
	{ OPT_INT, 0, "max-images", "N", &given.so.max_images,
	  "largest number of images per request [16]" },
	{ OPT_INT64, 0, "image-pixels", "N", &given.so.image_pixels,
	  "largest width times height of an image [67108864]" },
	{ OPT_BYTES0, 0, "image-cache", "SIZE", &given.image_cache,
	  "memory for images that later requests send again, per model; 0: none [256M]" },
	{ OPT_FLAG, 0, "no-image-cache", NULL, &given.no_image_cache,
	  "read each image again with each request" },
	{ OPT_TEXT, 0, "allow-image-urls", "HOSTS", &given.so.allow_image_urls,
	  "fetch http(s) URLs of images from these hosts: a.b,*.c.d:8443 or *; names must have "
	  "public addresses [URLs are refused]" },
	{ OPT_GROUP, 0, "Batching", NULL, NULL, NULL },
	{ OPT_INT, 0, "max-concurrent-requests", "N", &given.eo.max_concurrent_requests,
	  "requests that may wait or run at a time; more get 429 [128]" },
	{ OPT_INT, 0, "max-batch-prefill-tokens", "N", &given.eo.max_batch_prefill_tokens,
	  "prompt tokens per step [chunk]" },
	{ OPT_INT64, 0, "max-batch-total-tokens", "N", &given.eo.max_batch_total_tokens,
	  "a request starts only if prompt + new tokens of all running requests fit [if "
	  "its prompt fits]" },
	{ OPT_INT64, 0, "kv-tokens", "N", &given.kv_tokens,
	  "KV positions of all sequences together [max-batch-total-tokens, or --seqs "
	  "contexts as "
	  "far as memory allows]" },
	{ OPT_FLAG, 0, "no-prefix-cache", NULL, &given.eo.no_prefix_cache,
	  "do not reuse the KV of shared prefixes" },
	{ OPT_INT, 0, "speculate", "N", &given.speculate,
	  "draft up to N tokens per step by n-gram lookup when few requests run and it is "
	  "faster; the output is the same; 0: never [15]" },
	OPT_DRAFT(given.c.draft),
	{ OPT_TEXT, 0, "prefix-dir", "DIR", &given.eo.prefix_dir,
	  "folder that keeps prefix pages as files, for restarts and for other servers of "
	  "the same model [none]" },
	{ OPT_BYTES, 0, "prefix-dir-size", "SIZE", &given.eo.prefix_dir_bytes,
	  "size limit of these files; the least recently used are removed first [8G]" },
	{ OPT_BYTES0, 0, "swap-memory", "SIZE", &given.eo.swap_bytes,
	  "host memory for the KV of preempted requests; not with kv.host [0: recompute "
	  "them]" },
	{ OPT_TEXT, 0, "batch-dir", "DIR", &given.so.batch_dir,
	  "folder for OpenAI's /v1/files and /v1/batches, which enables them; batches run "
	  "at the lowest priority and continue after a restart [none]" },
	{ OPT_BYTES, 0, "batch-dir-size", "SIZE", &given.so.batch_dir_bytes,
	  "size limit of these files [1G]" },
	{ OPT_GROUP, 0, "Connections", NULL, NULL, NULL },
	{ OPT_INT, 0, "max-connections", "N", &given.so.max_connections,
	  "largest number of connections; a further one closes the oldest idle one "
	  "[1000]" },
	{ OPT_INT, 0, "max-connections-per-client", "N", &given.so.max_connections_per_client,
	  "largest number of connections per client address [no limit]" },
	{ OPT_FLOAT, 0, "header-timeout", "SECONDS", &given.header_s,
	  "time until a request's header must be complete [10]" },
	{ OPT_FLOAT, 0, "body-timeout", "SECONDS", &given.body_s,
	  "time until a request's body must be complete [60]" },
	{ OPT_FLOAT, 0, "idle-timeout", "SECONDS", &given.idle_s,
	  "time after which an idle connection is closed [75]" },
	{ OPT_FLOAT, 0, "drain-delay", "SECONDS", &given.leave_s,
	  "after SIGTERM or SIGINT, time in which /health returns 503 while requests are "
	  "still accepted [0]" },
	{ OPT_FLOAT, 0, "drain-timeout", "SECONDS", &given.drain_s,
	  "after that, time in which running requests may finish [30]" },
	{ OPT_GROUP, 0, "Log", NULL, NULL, NULL },
	{ OPT_TEXT, 0, "log-file", "FILE", &given.log_file,
	  "file to which one line per request is appended; SIGHUP reopens it [standard "
	  "error]" },
	{ OPT_TEXT, 0, "otlp", "URL", &given.so.otlp,
	  "OpenTelemetry collector for spans of requests, such as http://127.0.0.1:4318 "
	  "[off]" },
	{ OPT_FLAG, 0, "log-json", NULL, &given.so.log_json, "write log lines as JSON objects" },
	OPT_FIT(given.c),
	OPT_COMMON(given.c),
	{ OPT_GROUP, 0, "Compatibility with TGI", NULL, NULL, NULL },
	{ OPT_INT, 0, "max-best-of", "N", &given.so.max_best_of,
	  "largest best_of in TGI's routes [2]" },
	{ OPT_INT, 0, "max-stop-sequences", "N", &given.so.max_stop_sequences,
	  "largest number of stop strings in TGI's routes [4]" },
	{ OPT_INT, 0, "max-top-n-tokens", "N", &given.so.max_top_n_tokens,
	  "largest top_n_tokens in TGI's routes [5]" },
	{ OPT_INT, 0, "validation-workers", "N", &given.so.validation_workers,
	  "threads that check and tokenize large requests, in addition to one for small "
	  "requests [2]" },
	{ OPT_FLOAT, 0, "waiting-served-ratio", "X", &given.eo.waiting_served_ratio,
	  "requests join a running batch once waiting / running reaches this ratio [0: at "
	  "once]" },
	{ OPT_INT, 0, "max-waiting-tokens", "N", &given.eo.max_waiting_tokens,
	  "... or after this many steps without a start [20]" },
};
enum { N_OPT = sizeof opt / sizeof *opt };

/* Change the help of common options that have another meaning or default in a server. */
static void
adapt_common(void)
{
	opt_help(opt, N_OPT, &given.c.seqs, "largest batch: sequences that run at a time [16]");
	opt_help(opt, N_OPT, &given.c.context,
	         "positions per sequence [the model's, as far as memory allows]");
	opt_help(opt, N_OPT, &given.c.memory,
	         "limit of memory, for example 8G; with several models the least recently used is "
	         "closed to make space");
	for (size_t i = 0; i < N_OPT; i++)
		if (opt[i].to == &given.c.lora) {
			opt[i].kind = OPT_LIST;
			opt[i].to = &given.loras;
			opt[i].arg = "[NAME=]DIR";
			opt[i].help = "merge a PEFT LoRA adapter into the weights; with NAME= "
			              "serve it as a further model; may be repeated";
		}
}

/* Check values that do not depend on the models. */
static int
check(const Command *cmd, ServeArgs *a)
{
	if (!sampling_known(a->sampling))
		return opt_usage_error(cmd, "--sampling %s: expected model or neutral",
		                       a->sampling);
	a->so.neutral_sampling = a->sampling && !strcmp(a->sampling, "neutral");
	if (a->so.max_images < 0 || a->so.image_pixels < 0 || a->image_cache < 0)
		return opt_usage_error(
		    cmd, "--max-images, --image-pixels and --image-cache must not be negative");
	if (a->c.mmproj && a->no_images)
		return opt_usage_error(cmd, "--mmproj and --no-images exclude each other");
	if (a->slots < 0 || a->rank < 0 || (a->rank && !a->slots))
		return opt_usage_error(cmd, "--lora-slots and --lora-rank must be at least 1, and "
		                            "--lora-rank needs --lora-slots");
	if (a->speculate < -1 || a->speculate > LLMC_MAX_SPECULATE)
		return opt_usage_error(cmd, "--speculate: expected 0 to %d, got %d",
		                       LLMC_MAX_SPECULATE, a->speculate);
	a->eo.speculate = a->speculate == 0 ? -1 : a->speculate < 0 ? 0 : a->speculate;
	if (a->c.seqs < 1)
		return opt_usage_error(cmd, "--seqs: expected at least 1, got %d", a->c.seqs);
	if (!(a->header_s >= 0 && a->body_s >= 0 && a->idle_s >= 0 && a->request_s >= 0 &&
	      a->sleep_s >= 0 && a->drain_s >= 0 && a->leave_s >= 0))
		return opt_usage_error(cmd, "timeouts must not be negative");
	int additional = a->additional ? json_schema_additional_of(a->additional) : 0;
	if (additional < 0)
		return opt_usage_error(cmd, ADDITIONAL_UNKNOWN, a->additional);
	a->so.additional = (llmc_additional)additional;
	a->so.special_text = a->special && !strcmp(a->special, "text");
	if (a->special && !a->so.special_text && strcmp(a->special, "special") != 0)
		return opt_usage_error(
		    cmd, "--special-tokens-in-content: expected special or text, got %s",
		    a->special);
	if (a->key_file && a->so.api_key)
		return opt_usage_error(cmd, "--api-key and --api-key-file exclude each other");
	return 0;
}

/* For a command line without a model: serve the models of --models-dir and --models-pulled, else
 * the downloaded models, if there are any. */
static int
without_model(const Command *cmd, ServeArgs *a)
{
	char none[8] = ""; /* has space for "[]" only: a longer list does not fit */
	size_t need = 0;
	llmc_error err;

	if (a->so.models_dir || a->so.models_pulled)
		return 0;
	a->so.models_pulled = true;
	llmc_status s = llmc_pulled(none, sizeof none, &need, &err);
	if (s != LLMC_OK && need < sizeof none)
		return fail_with(&err);
	return need >= sizeof none
	           ? 0
	           : opt_usage_error(cmd,
	                             NO_MODEL ", or a folder of models with --models-dir; `llmc "
	                                      "pull` has downloaded none");
}

int
serve_options(const Command *cmd, int argc, char **argv, ServeArgs **out)
{
	ServeArgs *a = &given;
	const char *args[1] = { NULL };

	*out = a;
	a->so = LLMC_INIT(llmc_serve_options);
	a->eo = LLMC_INIT(llmc_engine_options);
	a->so.port = 8000;
	a->speculate = -1;
	a->drain_s = 30;
	a->c.seqs = 16;
	a->image_cache = LLMC_DEFAULT_IMAGE_CACHE_BYTES;
	adapt_common();
	a->argv = settings_merge("LLMC_SERVE_", opt, N_OPT, argc, argv, &argc, &a->set_models);
	size_t n_arg = OPT_PARSE(cmd, opt, argc, a->argv, args);
	int code = check(cmd, a);
	if (code)
		return code;
	snprintf(a->slots_set, sizeof a->slots_set, "adapters.slots=%d", a->slots);
	snprintf(a->rank_set, sizeof a->rank_set, "adapters.rank=%d", a->rank);
	if ((a->slots && !list_add(&a->c.set, a->slots_set)) ||
	    (a->rank && !list_add(&a->c.set, a->rank_set)))
		return EXIT_MACHINE;
	a->c.images_if_any = !a->no_images;
	code = serve_models(cmd, &a->c, n_arg ? args[0] : NULL,
	                    n_arg || a->models.n ? &a->models : &a->set_models, &a->loras,
	                    a->model_name, &a->all);
	if (code)
		return code;
	code = a->all.n ? 0 : without_model(cmd, a);
	if (code)
		return code;
	const bool found = a->so.models_dir || a->so.models_pulled;
	if ((a->c.draft || a->c.mmproj) && (a->all.n > 1 || found))
		return opt_usage_error(cmd, "--%s works only with one model",
		                       a->c.draft ? "draft" : "mmproj");
	a->so.aliases = a->model_name ? strchr(a->model_name, ',') : NULL;
	if (a->so.aliases)
		a->so.aliases++;
	if (found && a->so.aliases && strchr(a->so.aliases, '*'))
		return opt_usage_error(cmd, "--model-name NAME,* goes with one model, not with %s",
		                       a->so.models_dir ? "--models-dir" : "--models-pulled");
	if (found && (a->c.weights || a->c.out_dir))
		return opt_usage_error(cmd, "%s goes with one model, not with %s",
		                       a->c.weights ? "--weights" : "--artifact",
		                       a->so.models_dir ? "--models-dir" : "--models-pulled");
	if (a->so.models_dir && access(a->so.models_dir, R_OK | X_OK) != 0) {
		complain("%s: %s", a->so.models_dir, strerror(errno));
		return EXIT_INPUT;
	}
	a->so.image_cache_bytes = a->no_image_cache || !a->image_cache ? -1 : a->image_cache;
	a->so.header_timeout_s = a->header_s;
	a->so.body_timeout_s = a->body_s;
	a->so.idle_timeout_s = a->idle_s;
	a->so.request_timeout_s = a->request_s;
	a->so.sleep_after_s = a->sleep_s;
	return 0;
}

void
serve_options_free(ServeArgs *a)
{
	serve_models_free(&a->all);
	free(a->models.v);
	free(a->set_models.v);
	free(a->loras.v);
	free(a->c.set.v);
	free(a->argv);
}
