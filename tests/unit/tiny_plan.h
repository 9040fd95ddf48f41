/* A whole plan written by hand, for target ref: one layer, two heads over one KV head, a tied head. Vocabulary 6, hidden 4. */
#ifndef TESTS_UNIT_TINY_PLAN_H
#define TESTS_UNIT_TINY_PLAN_H

#define TINY_SRC(name, rows, cols)                                                                              \
	"{\"name\":\"" name "\",\"rows\":" #rows ",\"cols\":" #cols ",\"first\":0,\"block\":" #rows ",\"stride\":" #rows \
	",\"n_block\":1,\"rope_pairs\":0,\"transpose\":0,\"unit_rows\":false,\"arranged\":false,\"stored\":null}"

#define TINY_STEPS                                                                                                        \
	"[{\"op\":\"embed\",\"layer\":-1,\"kernel\":null,\"arg\":[\"emb\",\"x\"],\"attr\":{\"hidden\":4,\"scale\":1.0},"      \
	"\"make\":[{\"value\":\"embed\",\"arg\":1}],\"yaml_line\":0,\"weight_bytes\":0,\"flops_per_row\":0},\n"               \
	"{\"op\":\"norm_qkv\",\"layer\":0,\"kernel\":null,\"arg\":[\"x\",\"norm\",null,\"qkv\",null,null,null,\"rope:0\","     \
	"\"kv:kv:0\",\"q\",null],\"attr\":{\"hidden\":4,\"heads\":2,\"kv_heads\":1,\"dim\":2,\"norm\":\"rms\",\"eps\":1e-05," \
	"\"plus_one\":0,\"qk_eps\":0.0,\"qk_plus_one\":0,\"rope_dims\":2,\"style\":\"half\"},"                                \
	"\"make\":[{\"value\":\"L0.q\",\"arg\":9},{\"value\":\"L0.k\",\"arg\":-1}],\"yaml_line\":3,\"weight_bytes\":128,"      \
	"\"flops_per_row\":64},\n"                                                                                            \
	"{\"op\":\"attention\",\"layer\":0,\"kernel\":null,\"arg\":[\"q\",\"kv:kv:0\",null,null,\"att\"],\"attr\":{\"heads\":2,"    \
	"\"kv_heads\":1,\"dim\":2,\"v_dim\":2,\"scale\":0.7071,\"softcap\":0.0,\"window\":0,\"chunk\":0,\"mask\":\"causal\",\"alibi\":0.0,\"alibi_first\":0,\"alibi_heads\":0},"    \
	"\"make\":[],\"yaml_line\":0,\"weight_bytes\":0,\"flops_per_row\":0},\n"                                               \
	"{\"op\":\"matmul_add\",\"layer\":0,\"kernel\":null,\"arg\":[\"att\",\"o\",null,\"x\",\"x\"],\"attr\":{\"rows\":4,"    \
	"\"cols\":4,\"scale\":1.0},\"make\":[],\"yaml_line\":0,\"weight_bytes\":64,\"flops_per_row\":32},\n"                   \
	"{\"op\":\"lm_head\",\"layer\":-1,\"kernel\":null,\"arg\":[\"x\",\"norm\",null,\"emb\",\"logits\"],\"attr\":{\"rows\":6," \
	"\"cols\":4,\"norm\":\"rms\",\"eps\":1e-05,\"plus_one\":0,\"scale\":1.0,\"softcap\":0.0},\"make\":[{\"value\":\"logits\",\"arg\":4}],"    \
	"\"yaml_line\":0,\"weight_bytes\":96,\"flops_per_row\":48}]"

static const char tiny_plan[] =
    "{\"format\":5,\"step_abi\":3,\"name\":\"tiny\",\"family\":\"none\",\"spec_sha256\":\"00\",\"target\":\"ref\",\n"
    "\"vocab\":6,\"vocab_used\":6,\"hidden\":4,\"max_positions\":256,\"n_layers\":1,\"hard_limit\":false,"
    "\"prompt_whole\":false,\"prefix_mark\":-1,\"prefix_end\":-1,\"prompt_prefix\":null,\"checkpoint\":\"hf\","
    "\"weights\":null,\"bos\":1,\"eos\":[2,3],\"n_params\":76,\"logits\":\"logits\",\n"
    "\"tensor\":[{\"id\":\"emb\",\"dtype\":\"f32\",\"rows\":6,\"cols\":4,\"layout\":\"row\",\"scale_cols\":0,\"symmetric\":false,\"src\":[" TINY_SRC("emb.weight", 6, 4)
    "]},\n{\"id\":\"norm\",\"dtype\":\"f32\",\"rows\":4,\"cols\":0,\"layout\":\"f32\",\"scale_cols\":0,\"symmetric\":false,\"src\":[" TINY_SRC("norm.weight", 4, 0)
    "]},\n{\"id\":\"qkv\",\"dtype\":\"f32\",\"rows\":8,\"cols\":4,\"layout\":\"r8\",\"scale_cols\":0,\"symmetric\":false,\"src\":[" TINY_SRC("q.weight", 4, 4)
    "," TINY_SRC("kv.weight", 4, 4) "]},\n{\"id\":\"o\",\"dtype\":\"f32\",\"rows\":4,\"cols\":4,\"layout\":\"row\",\"scale_cols\":0,\"symmetric\":false,\"src\":["
    TINY_SRC("o.weight", 4, 4) "]}],\n"
    "\"pool\":[{\"id\":\"kv\",\"mla\":false,\"k\":\"f32\",\"v\":\"f32\",\"rotate\":false,\"n_layers\":1,\"kv_heads\":1,\"k_dim\":2,\"v_dim\":2,\"keep\":0}],\n"
    "\"rope\":[{\"theta\":10000.0,\"dims\":2,\"scaling\":\"none\",\"factor\":1.0,\"turning\":1.0,\"original_positions\":256.0,"
    "\"low_freq_factor\":0.0,\"high_freq_factor\":0.0,\"beta_fast\":0.0,\"beta_slow\":0.0,\"attention_factor\":0.0,"
    "\"mscale\":0.0,\"mscale_all_dim\":0.0,\"truncate\":true,\"short_factor\":[],\"long_factor\":[],"
    "\"factors_tensor\":[null,null],\"axis\":0}],\n"
    "\"slot\":[{\"n_tok\":16},{\"n_tok\":16},{\"n_tok\":24}],\n"
    "\"buffer\":[{\"id\":\"x\",\"dtype\":\"f32\",\"extent\":{\"n_tok\":4},\"slot\":0},"
    "{\"id\":\"q\",\"dtype\":\"f32\",\"extent\":{\"n_tok\":4},\"slot\":1},"
    "{\"id\":\"att\",\"dtype\":\"f32\",\"extent\":{\"n_tok\":4},\"slot\":2},"
    "{\"id\":\"logits\",\"dtype\":\"f32\",\"extent\":{\"n_out\":6},\"slot\":2}],\n"
    "\"kernel\":[],\n"
    "\"phase\":[{\"id\":\"decode\",\"step\":" TINY_STEPS "},\n{\"id\":\"mixed\",\"step\":" TINY_STEPS "}]}\n";

#endif
