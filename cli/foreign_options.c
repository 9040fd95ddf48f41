/* Options of llama.cpp and vLLM that users type out of habit. Each is another spelling of an option
 * of llmc, or gets an explanation. */
#include <string.h>

#include "base/nearest.h"
#include "cli/cli.h"

#define HUB_FILE "append the file to the name of the model: hf:ORG/REPO:FILE"
#define ALWAYS "this is always on; leave the option out"
#define KV_TYPE "keys and values have one type; use --kv, for example --kv int8"
#define TOWER "the vision tower is used only with --image; leave the option out"
#define EMBEDDING                                                                                  \
	"an embedding model serves /v1/embeddings by itself; for another one use --set "           \
	"head.kind=hidden --set pool.kind=mean"
#define TOOLS "the server runs no tools; clients run those of their requests"
#define COPIED                                                                                     \
	"weights are packed into memory when the model opens, not mapped; leave the option out"

/* clang-format off: a table */
static const ForeignOption foreign[] = {
	{ "-m", OPT_MODEL, NULL },
	{ "--model", OPT_MODEL, NULL },
	{ "-c", "context", NULL },
	{ "--ctx-size", "context", NULL },
	{ "--max-model-len", "context", NULL },
	{ "--context-length", "context", NULL },
	{ "-n", "max-tokens", "set max_tokens in the request" },
	{ "--n-predict", "max-tokens", "set max_tokens in the request" },
	{ "--predict", "max-tokens", "set max_tokens in the request" },
	{ "--max-new-tokens", "max-tokens", "set max_tokens in the request" },
	{ "-np", "seqs", NULL },
	{ "--parallel", "seqs", NULL },
	{ "--max-num-seqs", "seqs", NULL },
	{ "--temp", "temperature", "set temperature in the request" },
	{ "-s", "seed", "set seed in the request" },
	{ "--repeat-penalty", "repetition-penalty", "set repetition_penalty in the request" },
	{ "--typical", "typical-p", "set typical_p in the request" },
	{ "--sampling-seq", "samplers", "set samplers in the request" },
	{ "--sampler-seq", "samplers", "set samplers in the request" },
	{ "-sys", "system", NULL },
	{ "--system-prompt", "system", NULL },
	{ "--grammar-file", "grammar", NULL },
	{ "-j", "schema", NULL },
	{ "--json-schema-file", "schema", NULL },
	{ "-jf", "schema", NULL },
	{ "-md", "draft", NULL },
	{ "--model-draft", "draft", NULL },
	{ "--draft-max", "speculate", NULL },
	{ "--draft-n", "speculate", NULL },
	{ "-a", "model-name", NULL },
	{ "--alias", "model-name", NULL },
	{ "--served-model-name", "model-name", NULL },
	{ "-tp", "tp", NULL },
	{ "--tensor-parallel-size", "tp", NULL },
	{ "-pp", "pp", NULL },
	{ "--pipeline-parallel-size", "pp", NULL },
	{ "--quantization", "quantize", NULL },
	{ "--kv-cache-dtype", "kv", NULL },
	{ "-ub", "chunk", NULL },
	{ "--ubatch-size", "chunk", NULL },
	{ "-b", "chunk", NULL },
	{ "--batch-size", "chunk", NULL },
	{ "--max-num-batched-tokens", "max-batch-prefill-tokens", NULL },
	{ "--lora-modules", "lora", NULL },
	{ "-ngl", "offload", NULL },
	{ "--gpu-layers", "offload", NULL },
	{ "--n-gpu-layers", "offload", NULL },
	{ "-ncmoe", "n-cpu-moe", NULL },
	{ "-ot", "override-tensor", NULL },
	{ "-cmoe", NULL, "use --offload experts" },
	{ "--cpu-moe", NULL, "use --offload experts" },
	{ "-mm", "mmproj", NULL },
	{ "--no-mmproj", "no-images", TOWER },
	{ "-dev", "device", NULL },
	{ "--target", "device", NULL },
	{ "--device", "target", NULL },
	{ "-sm", NULL, "use --device cuda:0,1 to split the model over GPUs" },
	{ "--split-mode", NULL, "use --device cuda:0,1 to split the model over GPUs" },
	{ "-mg", NULL, "use --device cuda:N to select a GPU" },
	{ "--main-gpu", NULL, "use --device cuda:N to select a GPU" },
	{ "--gpu-memory-utilization", NULL, "use --memory SIZE to limit memory, for example 20G" },
	{ "-hf", OPT_HUB_MODEL, NULL },
	{ "-hfr", OPT_HUB_MODEL, NULL },
	{ "--hf-repo", OPT_HUB_MODEL, NULL },
	{ "-hff", NULL, HUB_FILE },
	{ "--hf-file", NULL, HUB_FILE },
	{ "-mu", OPT_MODEL, NULL },
	{ "--model-url", OPT_MODEL, NULL },
	{ "-fa", NULL, ALWAYS },
	{ "--flash-attn", NULL, ALWAYS },
	{ "--jinja", NULL, ALWAYS },
	{ "--no-jinja", NULL, "templates are always Jinja; --chat-template replaces the model's" },
	{ "--chat-template-file", "chat-template", NULL },
	{ "--default-chat-template-kwargs", "chat-template-kwargs", NULL },
	{ "--reasoning", NULL, "use --chat-template-kwargs '{\"enable_thinking\": false}'" },
	{ "-rea", NULL, "use --chat-template-kwargs '{\"enable_thinking\": false}'" },
	{ "--reasoning-budget", NULL, "set thinking_token_budget in the request" },
	{ "--reasoning-format", NULL, "set reasoning_format in the request" },
	{ "--embedding", NULL, EMBEDDING },
	{ "--embeddings", NULL, EMBEDDING },
	{ "--reranking", NULL, "/v1/rerank works with any model; leave the option out" },
	{ "--rerank", NULL, "/v1/rerank works with any model; leave the option out" },
	{ "--pooling", NULL, "use --set pool.kind=mean, last or cls, or pooling in the request" },
	{ "--metrics", NULL, ALWAYS },
	{ "--slots", NULL, ALWAYS },
	{ "--cors-origins", "allow-origin", NULL },
	{ "--slot-save-path", "prefix-dir", NULL },
	{ "--sleep-idle-seconds", "sleep-after", NULL },
	{ "--timeout", "request-timeout", NULL },
	{ "-to", "request-timeout", NULL },
	{ "--context-shift", NULL, "an answer ends with the context; use a larger --context" },
	{ "--media-path", NULL, "send images as data: URLs, or use --allow-image-urls" },
	{ "--tools", NULL, TOOLS },
	{ "--mcp-servers-config", NULL, TOOLS },
	{ "--no-webui", NULL, "the page needs no option; it is served at /chat" },
	{ "--no-ui", NULL, "the page needs no option; it is served at /chat" },
	{ "-cb", NULL, ALWAYS },
	{ "--cont-batching", NULL, ALWAYS },
	{ "--enable-prefix-caching", NULL, ALWAYS },
	{ "--enable-chunked-prefill", NULL, ALWAYS },
	{ "-ctk", NULL, KV_TYPE },
	{ "--cache-type-k", NULL, KV_TYPE },
	{ "-ctv", NULL, KV_TYPE },
	{ "--cache-type-v", NULL, KV_TYPE },
	{ "--mlock", NULL, COPIED },
	{ "--no-mmap", NULL, COPIED },
	{ "-cnv", NULL, "use `llmc chat MODEL`" },
	{ "--conversation", NULL, "use `llmc chat MODEL`" },
	{ "-i", NULL, "use `llmc chat MODEL`" },
	{ "--interactive", NULL, "use `llmc chat MODEL`" },
	{ "--dtype", NULL, "weights keep the type of the checkpoint; use --quantize to change it" },
	{ "--trust-remote-code", NULL, "llmc runs no code of a model; leave the option out" },
};
/* clang-format on */

const ForeignOption *
foreign_option_find(const char *spelled, size_t len)
{
	for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
		if (strlen(foreign[i].spelled) == len && !strncmp(foreign[i].spelled, spelled, len))
			return &foreign[i];
	return NULL;
}

const ForeignOption *
foreign_option_nearest(const char *name)
{
	const char *all[sizeof foreign / sizeof *foreign];
	size_t n = 0;

	for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
		if (!strncmp(foreign[i].spelled, "--", 2) && foreign[i].own)
			all[n++] = foreign[i].spelled + 2;
	const char *near = nearest_text(name, all, n);
	for (size_t i = 0; near && i < sizeof foreign / sizeof *foreign; i++)
		if (foreign[i].own && foreign[i].spelled + 2 == near)
			return &foreign[i];
	return NULL;
}
