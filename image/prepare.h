/* Preprocessing: an image -> rows of patches and the tokens that stand for it. The steps are data,
 * read from the processor's configuration or from the keys of an mmproj GGUF. */
#ifndef LLMC_IMAGE_PREPARE_H
#define LLMC_IMAGE_PREPARE_H

#include <jansson.h>

#include "base/strbuf.h"
#include "image/image.h"

/* Rule for the size of the image before it is cut into tiles or patches */
typedef enum ImageResize {
	IMAGE_RESIZE_SIZE, /* size is height x width, or the shorter side = shortest */
	/* sides are multiples of a merged patch, with the largest area for soft_tokens tokens */
	IMAGE_RESIZE_SMART, /* sides are multiples of a merged patch, area in min_pixels ..
	                       max_pixels */
	IMAGE_RESIZE_BUDGET,
	IMAGE_RESIZE_LONGEST, /* longer side <= longest, sides rounded up to multiples */
	IMAGE_RESIZE_EVEN,    /* longer side = longest, the other one even */
} ImageResize;

typedef enum ImageTiling {
	IMAGE_TILE_NONE,
	IMAGE_TILE_SPLIT,  /* squares of `tile`, then the whole image (Idefics3, SmolVLM) */
	IMAGE_TILE_ASPECT, /* the grid of min_tiles .. max_tiles with the nearest aspect (InternVL)
	                    */
	IMAGE_TILE_ANYRES, /* the whole image, then squares of the best of `pinpoint` (LLaVA-NeXT)
	                    */
	IMAGE_TILE_CROPS,  /* the whole image, then crops along its longer side (Gemma 3) */
} ImageTiling;

/* Form of the text that replaces the placeholder of the chat template */
typedef enum ImageText {
	IMAGE_TEXT_RUN, /* before, all tokens, after */
	/* per row of patches: its tokens and row_end; the last row ends with `after` */
	IMAGE_TEXT_ROWS,
	IMAGE_TEXT_GRID,  /* per tile: fake, <row_R_col_C>, tokens; the whole image at the end */
	IMAGE_TEXT_CROPS, /* a run per tile, within a sentence if there are several (Gemma 3) */
} ImageText;

typedef enum ImageFilter {
	IMAGE_NEAREST,
	IMAGE_LANCZOS,
	IMAGE_BILINEAR,
	IMAGE_BICUBIC,
} ImageFilter;

/* Arithmetic of the resampling and normalisation. Both backends round to 8 bits after each pass,
 * and widen the filter when an image shrinks. Weights have 16 bits in torch and 22 bits in
 * Pillow. */
typedef enum ImageBackend { IMAGE_TORCHVISION, IMAGE_PILLOW } ImageBackend;

enum { IMAGE_STRING = 64, IMAGE_PINPOINTS = 64 };

/* Fields are set by name from configs/images/processors.yaml; see image/rules.c. */
typedef struct ImageRules {
	char name[IMAGE_STRING]; /* class of the processor */
	ImageBackend backend;

	bool do_resize;
	ImageResize resize;
	ImageFilter filter;
	int32_t height, width, shortest, longest;
	int64_t min_pixels, max_pixels;
	int32_t soft_tokens; /* IMAGE_RESIZE_BUDGET */
	/* crop the centre to crop_height x crop_width; a smaller image is padded with zeros */
	bool center_crop;
	int32_t crop_height, crop_width;
	bool pad_square; /* pad to a square with the mean colour before the resize (LLaVA) */

	ImageTiling tiling;
	bool cut;     /* false: no tiles */
	int32_t tile; /* side in pixels */
	int32_t min_tiles, max_tiles;
	int32_t min_crop; /* IMAGE_TILE_CROPS: smallest side of a crop */
	double min_ratio; /* IMAGE_TILE_CROPS: aspect ratio from which crops are made */
	int32_t n_pinpoint;
	int32_t pinpoint[IMAGE_PINPOINTS][2]; /* IMAGE_TILE_ANYRES: height, width */

	bool do_rescale, do_normalize;
	double rescale;
	double mean[3], std[3];

	/* patch: side of a patch; temporal: copies of the frame in a row */
	int32_t patch, temporal;
	int32_t merge;       /* rows of a merge x merge square of patches are adjacent; 1: raster */
	int32_t model_patch; /* a row is model_patch x model_patch patches (Gemma 4 Unified: 3) */
	bool channel_last;   /* row is [patch, patch, 3]; else [3, temporal, patch, patch] */

	int32_t token_square;    /* patches per token and side */
	int32_t tokens_per_tile; /* fixed number of tokens; 0: it follows from token_square */
	int32_t extra_tokens;    /* rows per tile that are not patches, such as a class token */
	/* for a GGUF tower: the model's RoPE rotates by row and column of an image's rows */
	bool sections;
	bool drop_token; /* the first row of each tile is not used */
	ImageText text;
	char placeholder[IMAGE_STRING]; /* text of the chat template per image */
	char token[IMAGE_STRING];       /* token whose embeddings the tower's rows replace */
	char before[IMAGE_STRING], after[IMAGE_STRING], row_end[IMAGE_STRING];
	char fake[IMAGE_STRING], global[IMAGE_STRING];
} ImageRules;

typedef struct ImageTile {
	int32_t grid_h, grid_w; /* size in patches */
	int64_t first_row;
} ImageTile;

typedef struct ImageRows {
	float *value;      /* [n_row, row_elems]; NULL after image_measure */
	int64_t n_row;     /* sum of grid_h * grid_w of all tiles */
	int32_t row_elems; /* 3 * temporal * patch * patch */
	/* [n_row, 2]: y and x of each patch in its tile; NULL after image_measure */
	int32_t *position;
	ImageTile *tile;
	int32_t n_tile;
	int32_t tiles_h, tiles_w; /* grid of the tiles, without the whole image; 0: not cut */
	int64_t n_token;          /* rows of the tower's output */
	Strbuf text; /* replaces rules->placeholder; contains rules->token n_token times */
} ImageRows;

/* Parsed files of a model's folder, each of which except config may be NULL, or the keys of a GGUF
 * tower. */
typedef struct ImageFiles {
	const json_t *preprocessor; /* preprocessor_config.json */
	const json_t *processor;    /* processor_config.json */
	const json_t *config;       /* config.json */
	const json_t *tokenizer;    /* tokenizer_config.json */
	/* keys of a GGUF tower below clip., as nested objects; the other files are then NULL */
	const json_t *mmproj;
} ImageFiles;

/* Read the rules from the files. E_INPUT: a class, key or value has no equivalent in llmc; the
 * message names it.
 */
llmc_status image_rules_json(const ImageFiles *files, ImageRules *out, llmc_error *err);

/* Compute sizes, tiles and text for an image of width x height, without pixels. */
llmc_status image_measure(const ImageRules *r, int32_t width, int32_t height, ImageRows *out,
                          llmc_error *err);
/* Compute the same together with rows and positions. Release the result with image_rows_release. */
llmc_status image_prepare(const ImageRules *r, const ImagePixels *im, ImageRows *out,
                          llmc_error *err);
void image_rows_release(ImageRows *rows);
#endif
