"""From text and options to chunks with their final weights; no model needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ...encoder.tokenizer import CleaningTokenize, can_clean, may_change
from ..chunking import ChunkedSection, chunk_prompt, chunks_of
from ..normalization import normalize
from ..options import EncodeOptions
from ..padding import rows_kept
from ..phrases.bind import Bound, marked_phrases, within_bounds
from ..phrases.cutoff import marked_as_cutoff
from ..phrases.hidden_phrases import hiding_issues, mark_hidden
from ..schemes import SCHEMES
from ..schemes.scheme import CutTerm, ReadTerm
from ..syntax import parse, syntax_of
from ..text.chunks import CLIP_L_LAYOUT, ChunkContext, Chunked, ChunkLayout, Token, TokenChunk, Tokenize
from ..text.embeddings import Embeddings
from ..text.prompt import Break, Fragment, Issue, Issues, Lora, Piece, Prompt, shortened
from ..text.tags import Bare, bare, read_loras
from ..text.weights import MAX_WEIGHT, clamped, clamped_issue

MAX_ISSUES = 100
"""Maximum number of issues listed; the rest are only counted."""


class ReadPrompt(NamedTuple):
    """A prompt processed as far as possible without a model."""

    prompt: Prompt
    """Fragments, breaks and marks."""
    sections: tuple[ChunkedSection, ...]
    """Chunks with their final weights; one section with one prompt, unless the syntax has ``.and`` or ``.blend``."""
    issues: Issues
    """Everything the author should know, in text order."""
    options: EncodeOptions
    """Options it was read with."""
    layout: ChunkLayout
    """Fixed parts of its chunks."""
    kept: tuple[int, ...] | None = None
    """If padding is dropped, the number of rows kept of each chunk of the result. None: all rows."""
    terms: tuple[ReadTerm, ...] = ()
    """Scheme ``negpip_apart``: terms cut out of the prompt, which are in none of its sections."""

    @property
    def chunks(self) -> tuple[TokenChunk, ...]:
        """All chunks in reading order, at least one; terms' chunks come last."""
        return (*chunks_of(self.sections), *(chunk for term in self.terms for chunk in term.chunks))

    @property
    def encoded(self) -> list[tuple[Token, ...]]:
        """Tokens of each chunk that the encoder has positions for, without terms."""
        first = 0 if self.layout.has_bos else 1
        return [chunk.tokens[first:] for chunk in chunks_of(self.sections)]

    @property
    def has_signs(self) -> bool:
        """Whether its scheme gives any row the sign -1."""
        scheme = SCHEMES[self.options.scheme]
        return scheme.has_signs is not None and scheme.has_signs(self)


def read_prompt(
    text: str,
    options: EncodeOptions,
    tokenize: Tokenize,
    layout: ChunkLayout = CLIP_L_LAYOUT,
    *,
    embeddings: Embeddings | None = None,
    rule: Callable[[Prompt, ChunkContext], Chunked] | None = None,
) -> ReadPrompt:
    """Parse, tokenize, cut into chunks and normalise.

    Args:
        text: Any string.
        options: Options.
        tokenize: The encoder's tokenizer.
        layout: The encoder's chunk layout; CLIP-L's by default.
        embeddings: Embeddings the prompt can name; without them, names are plain text.
        rule: The encoder's only chunk rule, instead of the option's; its texts are not cleaned.

    Returns:
        The chunks, their weights final and finite.

    Raises:
        PromptError: In strict mode, if the reference raises.
        ValueError: If an option is out of range.
    """
    if options.is_cleaned and rule is None:
        tokenize = CleaningTokenize(tokenize)
    context = ChunkContext(tokenize, layout, options.comma_backtrack, embeddings, options.quirks, rule)
    bare_text, left, terms = _without_tags_and_terms(text, options)
    parsed = relocated(_read(left.text, options, context), text, left)
    if terms:
        parsed = _with_terms(parsed, terms, context)
    return _with_removed_parts(parsed, bare_text) if bare_text.spans else parsed


def parse_encoded(text: str, options: EncodeOptions) -> Prompt:
    """Parse the encoded part of a prompt, without tags, comments and terms, in its own positions."""
    _, left, _ = _without_tags_and_terms(text, options)
    return parse(left.text, options.syntax, strict=options.strict)


def _without_tags_and_terms(text: str, options: EncodeOptions) -> tuple[Bare, Fragment, Sequence[CutTerm]]:
    """A prompt without tags and comments, the same without the terms that its scheme cuts out, and these."""
    has_tags = options.has_tags and syntax_of(options.syntax).has_tags
    bare_text = bare(text, has_comments=options.comment_marks, has_tags=has_tags)
    cut = SCHEMES[options.scheme].cut
    if cut is None or not syntax_of(options.syntax).has_groups:
        return bare_text, bare_text.fragment, ()
    return bare_text, *cut(bare_text.fragment)


def _read(text: str, options: EncodeOptions, context: ChunkContext) -> ReadPrompt:
    """Read a prompt without tags of extra networks."""
    prompt = parse(text, options.syntax, strict=options.strict)
    chunked, chunk_issues = chunk_prompt(prompt, context, options.chunking)
    weight_issues: list[Issue] = []

    def final(chunks: tuple[TokenChunk, ...]) -> tuple[TokenChunk, ...]:
        result, clamp_issues = _clamped(normalize(chunks, options.normalization))
        weight_issues.extend(clamp_issues)
        result = mark_hidden(result, options, context.tokenize)
        return mark_bound(result, prompt.source, options, context.tokenize).chunks

    sections = tuple(replace(section, prompts=tuple(map(final, section.prompts))) for section in chunked)
    row_counts = rows_kept(sections) if options.drops_padding else None
    parsed = ReadPrompt(prompt, sections, (), options, context.layout, row_counts)
    # clamped weights are named for being clamped
    written = (issue for issue in prompt.issues if not (weight_issues and issue.code == "infinite-weight"))
    problems = [
        *written,
        *(_uncleaned(prompt) if options.is_cleaned else ()),
        *chunk_issues,
        *weight_issues,
        *mark_bound(chunks_of(sections), prompt.source, options, context.tokenize).issues,
        *hiding_issues(chunks_of(sections), options, context.tokenize),
        *SCHEMES[options.scheme].issues(parsed),
    ]
    return parsed._replace(issues=at_most(MAX_ISSUES, sorted(problems, key=lambda issue: issue.span)))


def _with_terms(parsed: ReadPrompt, terms: Sequence[CutTerm], context: ChunkContext) -> ReadPrompt:
    """Add terms cut out of the prompt, each parsed and cut into chunks separately."""
    options, source = parsed.options, parsed.prompt.source
    read_terms: list[ReadTerm] = []
    issues = list(parsed.issues)
    for term in terms:
        prompt = parse(term.fragment.text, options.syntax, strict=options.strict)
        chunked, chunk_issues = chunk_prompt(prompt, context, options.chunking)
        chunks, clamped = _clamped(normalize(chunks_of(chunked), options.normalization))
        section = ChunkedSection((chunks,))
        term_prompt = ReadPrompt(prompt, (section,), (*prompt.issues, *chunk_issues, *clamped), options, context.layout)
        term_prompt = relocated(term_prompt, source, term.fragment)
        issues += term_prompt.issues
        plain = chunk_prompt(parse(term.text.text, options.syntax), context, options.chunking).chunks
        num_tokens = (len(plain) - 1) * context.layout.capacity + plain[-1].num_content
        read_terms.append(ReadTerm(term_prompt.chunks, num_tokens))
    marks = tuple(sorted([*parsed.prompt.marks, *(term.span for term in terms)]))
    issues = at_most(MAX_ISSUES, sorted(issues, key=lambda issue: issue.span))
    return parsed._replace(prompt=replace(parsed.prompt, marks=marks), issues=issues, terms=tuple(read_terms))


def mark_bound(chunks: Sequence[TokenChunk], text: str, options: EncodeOptions, tokenize: Tokenize) -> Bound:
    """Mark the tokens of each phrase with its number, and those it hides from the others.

    A phrase is found by its token ids, within a chunk, ignoring case and weight; likewise the words it hides. All its
    occurrences are marked. Under ``cutoff`` the parts between commas are numbered, words are found as whole words of
    the text, and parts without any of them are not phrases.
    """
    if not options.binds:
        return Bound(tuple(chunks), ())
    if options.bind_hide == "cutoff":
        return within_bounds(marked_as_cutoff(chunks, text, options, tokenize), chunks)
    return within_bounds(marked_phrases(chunks, options, tokenize), chunks)


def _uncleaned(prompt: Prompt) -> list[Issue]:
    """Issues for each fragment that Forge might repair, if ftfy is not installed."""
    fragments = [fragment for fragment in prompt.fragments if may_change(fragment.text)]
    if not fragments or can_clean():
        return []
    return [
        Issue(
            "not-cleaned",
            f"“{shortened(fragment.text.strip())}” is not cleaned as in Forge, so its tokens may differ: the Python "
            "package ftfy is not installed.",
            fragment.span,
        )
        for fragment in fragments
    ]


def _with_removed_parts(parsed: ReadPrompt, bare_text: Bare) -> ReadPrompt:
    """Add the parts removed from the prompt as marks, LoRAs and issues."""
    marks = tuple(sorted([*parsed.prompt.marks, *bare_text.spans]))
    loras = tuple(Lora(lora.name, lora.clip_strength) for lora in read_loras(bare_text.tags)[0])
    new_issues = [
        *bare_text.issues(parsed.prompt.source),
        *SCHEMES[parsed.options.scheme].left_out_issues(bare_text.spans),
    ]
    issues = sorted([*parsed.issues, *new_issues], key=lambda issue: issue.span)
    prompt = replace(parsed.prompt, marks=marks, loras=loras)
    return parsed._replace(prompt=prompt, issues=at_most(MAX_ISSUES, issues))


def reworded(parsed: ReadPrompt, words: str, here: str) -> ReadPrompt:
    """Adapt the wording of a prompt's problems to the place where they are shown."""
    return parsed._replace(
        issues=tuple(replace(issue, message=issue.message.replace(words, here)) for issue in parsed.issues)
    )


def relocated(parsed: ReadPrompt, source: str, fragment: Fragment) -> ReadPrompt:
    """Relocate a prompt that is part of a longer text, with all positions counted in that text."""
    if fragment.text == source:
        return parsed
    moved = fragment.span_of

    def moved_part(part: Fragment | Break) -> Fragment | Break:
        if isinstance(part, Break):
            return Break(moved(part.span))
        return replace(part, pieces=tuple(Piece(piece.text, moved(piece.span)) for piece in part.pieces))

    def moved_chunk(chunk: TokenChunk) -> TokenChunk:
        return replace(chunk, tokens=tuple(t._replace(span=t.span and moved(t.span)) for t in chunk.tokens))

    def moved_issue(issue: Issue) -> Issue:
        span = moved(issue.span)
        # a form that is apart in the text is not written anew as one
        is_whole = span.end - span.start == issue.span.end - issue.span.start
        return replace(issue, span=span, fix=issue.fix if is_whole else "")

    prompt = replace(
        parsed.prompt,
        source=source,
        parts=tuple(map(moved_part, parsed.prompt.parts)),
        marks=tuple(map(moved, parsed.prompt.marks)),
    )
    sections = (
        replace(section, prompts=tuple(tuple(map(moved_chunk, chunks)) for chunks in section.prompts))
        for section in parsed.sections
    )
    issues = map(moved_issue, parsed.issues)
    terms = (term._replace(chunks=tuple(map(moved_chunk, term.chunks))) for term in parsed.terms)
    return parsed._replace(prompt=prompt, sections=tuple(sections), issues=tuple(issues), terms=tuple(terms))


def at_most(count: int, issues: Sequence[Issue]) -> tuple[Issue, ...]:
    """The first issues, and one that counts the others."""
    if len(issues) <= count:
        return tuple(issues)
    rest = Issue("more-problems", f"{len(issues) - count} more problems are not listed.", issues[count].span)
    return (*issues[:count], rest)


def _clamped(chunks: tuple[TokenChunk, ...]) -> tuple[tuple[TokenChunk, ...], list[Issue]]:
    """Clamp weights to the range of float32; one issue for each fragment that changed."""
    weights = {token.weight for chunk in chunks for token in chunk.tokens}
    if all(abs(weight) <= MAX_WEIGHT for weight in weights):
        return chunks, []
    issues: dict[int, Issue] = {}

    def usable(token: Token) -> Token:
        if abs(token.weight) <= MAX_WEIGHT:
            return token
        issues[token.fragment] = clamped_issue(token.weight, token.at)
        return token._replace(weight=clamped(token.weight))

    result = tuple(replace(chunk, tokens=tuple(map(usable, chunk.tokens))) for chunk in chunks)
    return result, list(issues.values())
