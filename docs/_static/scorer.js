// The order of search results: pages whose title has the words first, then names of the API; measurements last.
var searched = (new URLSearchParams(window.location.search).get("q") || "").toLowerCase().split(/\s+/);
var Scorer = {
  score: ([docname, title, anchor, description, score]) => {
    if (docname === "reference/layers") return score + 10; // has the names of other libraries
    if (docname.startsWith("inside/")) return score - 30;
    if (docname.startsWith("reference/")) return score - 12;
    const name = title.toLowerCase();
    const found = searched.filter((word) => name.includes(word)).length;
    return score + 10 * found + (name.startsWith(searched[0]) ? 5 : 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 25,
  partialTitle: 12,
  term: 5,
  partialTerm: 2,
};
