"""The table of claims as markup: a group of rows for each part of the article, a card for each row on a phone."""

from collections.abc import Mapping
from html import escape

from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.speed.claims_list import GROUPS, UNMEASURED, Claim
from tfviz.ui.tabs.speed.claims_verdict import NOISY, OPEN, VERDICTS, Judgement

KEY = "speed.claims"
MARKS = {"holds": "✓", "part": "◐", "fails": "✗", "noisy": "?", "open": "○"}  # beside the word, never alone
COLUMNS = ("claim", "result", "verdict", "more")


def markup(judged: Mapping[str, Judgement], conditions: Mapping[str, str], t: Translator) -> str:
    """`conditions`: a sentence for each claim that was timed here: on what, and whether another section did it."""
    heads = "".join(f'<th scope="col">{escape(t(f"{KEY}.head.{one}"))}</th>' for one in COLUMNS)
    groups = "".join(
        '<tbody><tr class="tv-claims-group"><th scope="rowgroup" colspan="4">'
        + f"{escape(t(f'{KEY}.group.{group.key}'))}</th></tr>"
        + "".join(_row(one, judged.get(one.key), conditions.get(one.key, ""), t) for one in group.claims)
        + "</tbody>"
        for group in GROUPS
    )
    said = f'<caption class="tv-hidden">{escape(t(f"{KEY}.title"))}</caption>'
    return f"{summary(judged, t)}<table>{said}<thead><tr>{heads}</tr></thead>{groups}</table>{_others(t)}"


def counts(judged: Mapping[str, Judgement]) -> dict[str, int]:
    """How many claims have each verdict; OPEN: not measured yet."""
    every = [judged[one.key].verdict if one.key in judged else OPEN for group in GROUPS for one in group.claims]
    return {verdict: every.count(verdict) for verdict in VERDICTS}


def summary(judged: Mapping[str, Judgement], t: Translator) -> str:
    """One chip a verdict; pressed, it shows those alone (claims.js)."""
    chips = "".join(
        f'<button type="button" id="claims-only-{verdict}" class="of-{verdict}" data-verdict="{verdict}" '
        f'aria-pressed="false"{" disabled" if not n else ""}>{_mark(verdict)}'
        f"<strong>{n}</strong> {escape(t(f'{KEY}.{verdict}'))}</button>"
        for verdict, n in counts(judged).items()
    )
    label = escape(t(f"{KEY}.summary", n=sum(counts(judged).values())))
    said = f'<p class="tv-claims-said">{label}</p>'
    return f'{said}<div class="tv-claims-chips" role="group" aria-label="{label}">{chips}</div>'


def _mark(verdict: str) -> str:
    return f'<span class="tv-claims-mark" aria-hidden="true">{MARKS[verdict]}</span>'


def _row(claim: Claim, judgement: Judgement | None, condition: str, t: Translator) -> str:
    verdict, key = judgement.verdict if judgement else OPEN, f"{KEY}.{claim.key}"
    where = escape(t(f"{KEY}.chapter", chapter=claim.chapter))
    return (
        f'<tr class="of-{verdict}" id="claim-{claim.key}">'
        f'<th scope="row"><span class="tv-claims-at">{where}</span> {escape(t(key))}'
        f'<span class="tv-claims-formula">{claim.formula}</span></th>'
        f"<td>{_result(key, judgement, condition, t)}</td>"
        f"<td>{_verdict(claim, judgement, verdict, t)}</td>"
        f'<td class="tv-claims-more">{_buttons(claim, judgement, t)}</td></tr>'
    )


def _result(key: str, judgement: Judgement | None, condition: str, t: Translator) -> str:
    if judgement is None:
        return '<span class="tv-claims-none">–</span>'
    result = f"{key}.result.{judgement.told}" if judgement.told else f"{key}.result"
    told = escape(t(result, **judgement.fields))
    return told + (f'<small class="tv-claims-condition">{escape(condition)}</small>' if condition else "")


def _verdict(claim: Claim, judgement: Judgement | None, verdict: str, t: Translator) -> str:
    key = f"{KEY}.{claim.key}"
    word = f'<strong class="tv-claims-verdict">{_mark(verdict)}{escape(t(f"{KEY}.{verdict}"))}</strong>'
    why = ""
    if judgement is not None:
        said = f"{KEY}.noisy.{judgement.why}" if verdict == NOISY else f"{key}.{judgement.why}"
        why = f" <span>{escape(t(said, **judgement.fields))}</span>"
    rule = (
        f'<details id="claim-{claim.key}-rule"><summary>{escape(t(f"{KEY}.rule"))}</summary>'
        f"{escape(t(f'{key}.rule'))}</details>"
    )
    return word + why + rule


def _buttons(claim: Claim, judgement: Judgement | None, t: Translator) -> str:
    tab, _, _ = claim.shown.partition(".")
    name = t(f"{KEY}.{claim.key}")
    link = (
        f'<button type="button" class="tv-claims-link" data-tab="{tab}" data-section="{claim.shown}" '
        f'id="claim-{claim.key}-link">{escape(_place(claim.shown, t))}</button>'
    )
    if not claim.bench:
        return f'<small class="tv-claims-now">{escape(t(f"{KEY}.now"))}</small>{link}'
    word = t(f"{KEY}.{'again' if judgement else 'measure'}")
    return (
        f'<button type="button" class="tv-claims-measure" data-claim="{claim.key}" id="claim-{claim.key}-measure" '
        f'aria-label="{escape(word)}: {escape(name)}">{escape(word)}</button>{link}'
    )


def _place(section: str, t: Translator) -> str:
    tab, _, _ = section.partition(".")
    return f"{t(f'tab.{tab}')} › {t(f'{section}.name')}"


def _others(t: Translator) -> str:
    """Statements that have no number of their own: where they are shown."""
    items = []
    for key, chapter, shown in UNMEASURED:
        where = escape(t(f"{KEY}.chapter", chapter=chapter))
        text = f'<span class="tv-claims-at">{where}</span> {escape(t(f"{KEY}.other.{key}"))}'
        if shown:
            tab, _, _ = shown.partition(".")
            text += (
                f' <button type="button" class="tv-claims-link" data-tab="{tab}" data-section="{shown}" '
                f'id="claim-other-{key}">{escape(_place(shown, t))}</button>'
            )
        items.append(f"<li>{text}</li>")
    return f'<h3 class="tv-claims-others">{escape(t(f"{KEY}.others"))}</h3><ul>{"".join(items)}</ul>'
