#include "quant/hf_folder.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/dequant.h"

enum { MAX_SIDE_FILE_BYTES = 1 << 29 };

static const char *const words[FOLDER_FORMS] = { [FOLDER_INT4] = "int4",
	                                         [FOLDER_INT8] = "int8",
	                                         [FOLDER_FP8] = "fp8",
	                                         [FOLDER_MXFP4] = "mxfp4" };

FolderForm
folder_form(const char *word)
{
	for (int f = FOLDER_NONE + 1; f < FOLDER_FORMS; f++)
		if (strcmp(word, words[f]) == 0)
			return (FolderForm)f;
	return FOLDER_NONE;
}

const char *
folder_word(FolderForm f)
{
	return words[f];
}

bool
folder_fits(FolderForm f, int64_t cols, int group)
{
	return f == FOLDER_INT4    ? cols % group == 0
	       : f == FOLDER_MXFP4 ? cols % 32 == 0
	                           : f == FOLDER_FP8 || cols % 4 == 0;
}

Dtype
folder_blocks(FolderForm f, int group, Dtype scale)
{
	if (f == FOLDER_MXFP4)
		return DT_MXFP4;
	if (f != FOLDER_INT4)
		return DT_NONE;
	if (scale == DT_F16)
		return group == 128 ? DT_U4_128 : DT_U4_32;
	return group == 128 ? DT_U4_128_F32 : DT_U4_32_F32;
}

static int64_t
code_bytes(FolderForm f, int64_t rows, int64_t cols)
{
	return f == FOLDER_INT4 || f == FOLDER_MXFP4 ? rows * cols / 2 : rows * cols;
}

int
folder_parts(FolderForm f, const char *name, int64_t rows, int64_t cols, int group, Dtype scale,
             Arena *a, FolderPart part[FOLDER_PARTS])
{
	const int64_t groups = f == FOLDER_INT4 ? cols / group : f == FOLDER_MXFP4 ? cols / 32 : 1;
	const bool power = f == FOLDER_MXFP4;
	const char *packed = arena_printf(a, "%s_packed", name);

	switch (f) {
	case FOLDER_FP8:
		part[0] =
		    (FolderPart){ name, "F8_E4M3", 2, { rows, cols }, code_bytes(f, rows, cols) };
		break;
	case FOLDER_MXFP4:
		part[0] =
		    (FolderPart){ packed, "U8", 2, { rows, cols / 2 }, code_bytes(f, rows, cols) };
		break;
	default:
		part[0] = (FolderPart){ packed,
			                "I32",
			                2,
			                { rows, f == FOLDER_INT4 ? cols / 8 : cols / 4 },
			                code_bytes(f, rows, cols) };
		break;
	}
	part[1] = (FolderPart){ arena_printf(a, "%s_scale", name),
		                power ? "U8" : dtype_info(scale)->safetensors,
		                2,
		                { rows, groups },
		                rows * groups * (power ? 1 : 2) };
	if (f == FOLDER_FP8 || f == FOLDER_MXFP4)
		return 2;
	part[2] = (FolderPart){ arena_printf(a, "%s_shape", name), "I64", 1, { 2 }, 16 };
	return 3;
}

static void
put_shape(uint8_t *dst, int64_t rows, int64_t cols)
{
	const int64_t shape[2] = { rows, cols };

	memcpy(dst, shape, sizeof shape);
}

/* Repacks codes of a block: blocks pack columns c and c + 16 in a byte, a folder packs neighbouring
 * columns. Returns the end of the output. */
static uint8_t *
neighbours(const uint8_t *q, int columns, uint8_t *dst)
{
	for (int c = 0; c < columns; c += 2) {
		const uint8_t *at = q + c / 32 * 16 + c % 16;
		const int shift = c % 32 / 16 * 4;
		*dst++ = (uint8_t)((at[0] >> shift & 15) | (at[1] >> shift & 15) << 4);
	}
	return dst;
}

void
folder_from_blocks(Dtype blocks, const void *src, int64_t rows, int64_t cols, uint8_t *dst)
{
	const int columns = dtype_info(blocks)->block_elems,
	          bytes = dtype_info(blocks)->block_bytes;
	const int64_t n = rows * cols / columns;
	const uint8_t *b = src;
	uint8_t *scale = dst + rows * cols / 2;

	if (blocks == DT_MXFP4) {
		for (int64_t k = 0; k < n; k++, b += bytes) {
			scale[k] = b[0];
			dst = neighbours(b + 1, columns, dst);
		}
		return;
	}
	const DtypeGroup g = dtype_group(blocks);
	for (int64_t k = 0; k < n; k++, b += bytes) {
		/* f32 scales hold bf16 values, so the low half is 0 */
		memcpy(scale + 2 * k, b + (g.scale_bytes == 2 ? 0 : 2), 2);
		dst = neighbours(b + g.scale_bytes + 1, columns, dst);
	}
	put_shape(scale + 2 * n, rows, cols);
}

/* ---- int8 and fp8: one scale per row ---- */

static float
stored(Dtype scale, float f, uint8_t *to)
{
	uint16_t h = scale == DT_F16 ? f32_to_f16(f) : f32_to_bf16(f);

	memcpy(to, &h, sizeof h);
	return scale == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

static int
code_of(float t)
{
	t = rintf(t);
	return !(t > -128) ? -128 : t < 127 ? (int)t : 127;
}

void
folder_row(FolderForm f, Dtype scale, const float *x, const float *importance, int64_t r,
           int64_t rows, int64_t cols, uint8_t *dst)
{
	uint8_t *code = dst + r * cols, *to = dst + code_bytes(f, rows, cols) + 2 * r;
	float peak = 0, d, best_d = 0;
	double best = INFINITY;

	for (int64_t i = 0; i < cols; i++)
		peak = fmaxf(peak, fabsf(x[i]));
	if (f == FOLDER_FP8) {
		d = stored(scale, peak / 448, to);
		for (int64_t i = 0; i < cols; i++) {
			float one = d > 0 ? x[i] / d : 0;
			uint8_t block[36];
			float piece[32] = {
				one, 448
			}; /* values scaled to a peak of 448 give a group scale of 1 */
			quant_row(DT_F8_32, piece, block, 32);
			code[i] = block[4];
		}
		return;
	}
	/* a slightly smaller range clips the largest values but lowers the total error */
	for (int k = 0; k < 12; k++) {
		double error = 0;
		d = stored(scale, peak * (1 - .02f * (float)k) / 127, to);
		for (int64_t i = 0; d > 0 && i < cols; i++) {
			float e = x[i] - d * (float)code_of(x[i] / d);
			error += (double)(e * e * (importance ? importance[i] : 1));
		}
		if (error < best)
			best = error, best_d = d;
	}
	d = stored(scale, best_d, to);
	for (int64_t i = 0; i < cols; i++)
		code[i] = (uint8_t)((d > 0 ? code_of(x[i] / d) : 0) + 128);
	if (r == rows - 1)
		put_shape(dst + code_bytes(f, rows, cols) + 2 * rows, rows, cols);
}

/* ---- header and other files of the folder ---- */

void
folder_head_add(Strbuf *head, const FolderPart *p, int64_t *at)
{
	strbuf_puts(head, head->len ? "," : "{\"__metadata__\":{\"format\":\"pt\"},");
	json_str(head, p->name, strlen(p->name));
	strbuf_printf(head, ":{\"dtype\":\"%s\",\"shape\":[", p->type);
	for (int i = 0; i < p->n_dims; i++)
		strbuf_printf(head, "%s%lld", i ? "," : "", (long long)p->dim[i]);
	strbuf_printf(head, "],\"data_offsets\":[%lld,%lld]}", (long long)*at,
	              (long long)(*at + p->bytes));
	*at += p->bytes;
}

void
folder_head_text(const Strbuf *head, Strbuf *out)
{
	uint64_t n = (head->len + 1 + 7) / 8 * 8;

	strbuf_add(out, &n, sizeof n);
	strbuf_add(out, strbuf_str(head), head->len);
	strbuf_putc(out, '}');
	while (out->len % 8)
		strbuf_putc(out, ' ');
	out->failed |= head->failed;
}

static json_t *
quantization_config(FolderForm f, int group, const char *const *ignored, int n_ignored)
{
	static const char *const formats[FOLDER_FORMS] = { [FOLDER_INT4] = "pack-quantized",
		                                           [FOLDER_INT8] = "pack-quantized",
		                                           [FOLDER_FP8] = "float-quantized",
		                                           [FOLDER_MXFP4] =
		                                               "mxfp4-pack-quantized" };
	const bool grouped = f == FOLDER_INT4 || f == FOLDER_MXFP4,
	           is_float = f == FOLDER_FP8 || f == FOLDER_MXFP4;
	json_t *ignore = json_array(),
	       *weights =
	           json_pack("{s:i, s:s, s:b, s:s, s:b, s:s}", "num_bits", grouped ? 4 : 8, "type",
	                     is_float ? "float" : "int", "symmetric", 1, "strategy",
	                     grouped ? "group" : "channel", "dynamic", 0, "observer", "minmax");

	for (int i = 0; i < n_ignored; i++)
		json_array_append_new(ignore, json_string(ignored[i]));
	if (weights && grouped)
		json_object_set_new(weights, "group_size",
		                    json_integer(f == FOLDER_MXFP4 ? 32 : group));
	json_t *group_0 = json_pack("{s:[s], s:o, s:n, s:n}", "targets", "Linear", "weights",
	                            weights, "input_activations", "output_activations");
	if (group_0 && f == FOLDER_MXFP4) {
		json_object_set_new(weights, "scale_dtype", json_string("torch.uint8"));
		json_object_set_new(group_0, "format", json_string(formats[f]));
	}
	return json_pack("{s:s, s:s, s:s, s:{s:o}, s:o}", "quant_method", "compressed-tensors",
	                 "format", formats[f], "quantization_status", "compressed", "config_groups",
	                 "group_0", group_0, "ignore", ignore);
}

static bool
is_weights(const char *name)
{
	static const char *const ends[] = { ".safetensors", ".bin",        ".pt",
		                            ".pth",         ".index.json", ".gguf",
		                            ".h5",          ".msgpack",    ".onnx" };

	return ends_with_any(name, ends, sizeof ends / sizeof *ends);
}

llmc_status
folder_write_others(const char *in, const char *out, FolderForm f, int group,
                    const char *const *ignored, int n_ignored, llmc_error *err)
{
	Strbuf from = { 0 }, to = { 0 }, text = { 0 };
	llmc_status status = LLMC_OK;
	DIR *dir = opendir(in);

	if (!dir)
		return error_set(err, LLMC_E_IO, "%s: cannot read the folder: %s", in,
		                 strerror(errno));
	for (struct dirent *e; status == LLMC_OK && (e = readdir(dir));) {
		file_join(&from, in, e->d_name);
		file_join(&to, out, e->d_name);
		if (e->d_name[0] == '.' || is_weights(e->d_name) || file_is_dir(strbuf_str(&from)))
			continue;
		strbuf_clear(&text);
		status = file_read(strbuf_str(&from), MAX_SIDE_FILE_BYTES, &text, err);
		if (status == LLMC_OK && strcmp(e->d_name, "config.json") == 0) {
			json_error_t why;
			bool no_memory;
			json_t *config =
			           json_parse(strbuf_str(&text), text.len, 0, &why, &no_memory),
			       *q = quantization_config(f, group, ignored, n_ignored);
			char *made = NULL;
			if (no_memory)
				status = error_set(err, LLMC_E_MEMORY, "out of memory");
			else if (!json_is_object(config))
				status = error_set(err, LLMC_E_INPUT, "%s: not a JSON object",
				                   strbuf_str(&from));
			else if (!q || json_object_set(config, "quantization_config", q) != 0 ||
			         !(made = json_dumps(config, JSON_INDENT(2))))
				status =
				    error_set(err, LLMC_E_MEMORY, "out of memory for config.json");
			strbuf_clear(&text);
			strbuf_puts(&text, made ? made : "");
			strbuf_putc(&text, '\n');
			free(made);
			json_decref(config);
			json_decref(q);
		}
		if (status == LLMC_OK)
			status = file_write(strbuf_str(&to), strbuf_str(&text), text.len, err);
	}
	closedir(dir);
	strbuf_release(&from);
	strbuf_release(&to);
	strbuf_release(&text);
	return status;
}
