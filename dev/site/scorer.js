// Scores of the site's search, as Sphinx's own, but pages for readers come before those for developers.
var Scorer = {
  score: ([docname, , , , score]) => {
    if (["guide", "faq", "tutorial", "administrator", "recipes", "troubleshooting"].includes(docname)) return score + 4;
    if (["decisions", "architecture", "testing"].includes(docname)) return score - 4;
    return score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
